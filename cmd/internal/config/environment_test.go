package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// podFile is the fleet file of a migrator in a Pod.
const podFile = `# ${UNSET} in a comment is not looked up
models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}]
replicas:
- id: ${POD_NAME}
  address: "[${POD_IP}]:9000"
  peer: 127.0.0.1:9100
  engine: http://127.0.0.1:8000
tls: {plaintext: [requests]}
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
		testkit.NoError(t, err)
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
		_, _, err := expandEnvironment([]byte(podFile), func(name string) (string, bool) {
			return value, value != "unset"
		})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", value, err, want)
		}
	}
}

// TestEnvironmentIsNotShown checks that a refused file shows no value of the environment, whatever is wrong with it,
// and that a file cannot refer to variables that are not meant for it.
func TestEnvironmentIsNotShown(t *testing.T) {
	const secret = "hf_s3cretT0ken"
	t.Setenv("CASCADE_NAME", secret)
	t.Setenv("HF_TOKEN", secret)
	t.Setenv("CASCADE_LONG", secret+strings.Repeat("x", 100))
	dir := t.TempDir()
	for name, c := range map[string]struct{ old, new, want string }{
		"another variable":   {"${POD_NAME}", "${HF_TOKEN}", "line 4: ${HF_TOKEN}: a fleet file may refer to variables"},
		"a longer name":      {"${POD_NAME}", "${NOT_POD_NAME}", "line 4: ${NOT_POD_NAME}: a fleet file may refer"},
		"an address":         {"127.0.0.1:9100", "${CASCADE_NAME}", `line 6: replicas[0].peer: "${CASCADE_NAME}"`},
		"a number":           {"4096", "${CASCADE_NAME}", "line 2: "},
		"a long value, cut":  {"4096", "${CASCADE_LONG}", `line 2: "${CASCADE_LONG}`},
		"one in another":     {"4096", "${CASCADE_LONG}, name: ${CASCADE_NAME}", `${CASCADE_LONG}`},
		"cut in the middle":  {"4096", strings.Repeat("x", 20) + "${CASCADE_LONG}", "line 2: "},
		"an unknown field":   {"peer:", "${CASCADE_NAME}:", "line 6: "},
		"a URL":              {"http://127.0.0.1:8000", "ftp://${CASCADE_NAME}", "line 7: replicas[0].engine"},
		"a file":             {"h200-llama-3.1-8b", "./${CASCADE_NAME}", "profile"},
		"not YAML":           {"- id:", "- id: [", ""},
		"a second document":  {"- id:", "---\n- id:", ""},
		"unquoted in a list": {"peer: 127.0.0.1:9100", "peer: [${CASCADE_NAME}]", "line 6: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_NAME", "a"+secret)
			t.Setenv("POD_IP", "10.1.2.3")
			path := filepath.Join(dir, "fleet.yaml")
			text := strings.Replace(podFile, c.old, c.new, 1)
			testkit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
			_, err := Load(path)
			if name == "a file" { // which is read later
				testkit.NoError(t, err)
				err = LocateErrors(path, []*FieldError{{Path: "models[0].profile", Msg: "open ./" + secret + ": no such file or directory"}})
			}
			_, based := ReadBase([]byte(text))
			for _, err := range []error{err, based} {
				if err == nil || strings.Contains(err.Error(), secret) {
					t.Errorf("the error is %v", err)
				}
			}
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
	t.Setenv("POD_NAME", "x, "+secret)
	if _, err := ReadText([]byte(podFile)); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("a value with other characters: %v", err)
	}
}
