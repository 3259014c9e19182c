package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// podFile is the fleet file of a migrator in a Pod.
const podFile = `# ${UNSET} in a comment is not looked up
models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}]
replicas:
- id: ${POD_NAME}
  address: "[${POD_IP}]:9000"
  peer: 127.0.0.1:9100
  engine: http://127.0.0.1:8000
`

// TestLoadExpandsEnvironment reads a file whose values come from the environment, for both families
// of addresses.
func TestLoadExpandsEnvironment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fleet.yaml")
	testkit.NoError(t, os.WriteFile(path, []byte(podFile), 0o600))
	for ip, want := range map[string]string{"10.1.2.3": "10.1.2.3:9000", "fd00::7": "[fd00::7]:9000"} {
		t.Setenv("POD_NAME", "llama-0")
		t.Setenv("POD_IP", ip)
		f, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if r := f.Replicas[0]; r.ID != "llama-0" || r.Address != want {
			t.Errorf("%s: %+v", ip, r)
		}
	}
	t.Setenv("POD_IP", "not-an-ip")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "line 5: replicas[0].address") {
		t.Errorf("error: %v", err)
	}
}

// TestExpandEnvironmentRejects values that are missing, or that could become another field.
func TestExpandEnvironmentRejects(t *testing.T) {
	for value, want := range map[string]string{
		"unset":                   "line 4: ${POD_NAME}: the environment variable is not set",
		"":                        "line 4: ${POD_NAME}",
		"a\n  drain: true":        "line 4: ${POD_NAME}",
		"a, drain: true":          "line 4: ${POD_NAME}",
		"a #":                     "line 4: ${POD_NAME}",
		`a"`:                      "line 4: ${POD_NAME}",
		strings.Repeat("a", 1001): "at most 1000",
	} {
		_, err := expandEnvironment([]byte(podFile), func(name string) (string, bool) {
			return value, value != "unset"
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", value, err, want)
		}
	}
}
