package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"text/template"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// shellBlock matches the commands of a page.
var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// TestKubernetesReadme: the commands of deploy/kubernetes/README.md are commands with these flags, the files that they
// name are there, and the fleet file that it writes is valid.
func TestKubernetesReadme(t *testing.T) {
	root := filepath.Join("..", "..")
	text := string(testkit.Must(os.ReadFile(filepath.Join(root, "deploy", "kubernetes", "README.md"))))
	path := regexp.MustCompile(`\bdeploy/[\w./-]*\w`)
	own := regexp.MustCompile(`(?m)(?:^|/bin/)cascade ([a-z].*?)(?: >.*)?$`)
	commands, paths := 0, 0
	for _, block := range shellBlock.FindAllStringSubmatch(text, -1) {
		for _, m := range own.FindAllStringSubmatch(block[1], -1) {
			commands++
			if why := checkCommand("cascade " + m[1]); why != "" {
				t.Errorf("cascade %s: %s", m[1], why)
			}
		}
		for _, p := range path.FindAllString(block[1], -1) {
			paths++
			if _, err := os.Stat(filepath.Join(root, p)); err != nil {
				t.Error(err)
			}
		}
	}
	if commands < 3 || paths < 6 {
		t.Errorf("found %d commands and %d files: the patterns are wrong", commands, paths)
	}
	_, edge, _ := strings.Cut(text, "cat > edge.yaml <<END\n")
	edge, _, _ = strings.Cut(edge, "END\n")
	if _, err := config.Read(strings.NewReader(edge)); err != nil {
		t.Errorf("edge.yaml: %v", err)
	}
}

// TestReplicasTemplate renders the template of replicas as kubectl does, for Pods of both families of addresses, one
// that is being deleted and one without an address.
func TestReplicasTemplate(t *testing.T) {
	text := string(testkit.Must(os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "replicas.gotemplate"))))
	pod := func(name, ip string, more map[string]any) map[string]any {
		meta := map[string]any{"name": name, "uid": "9f2c"}
		for k, v := range more {
			meta[k] = v
		}
		status := map[string]any{}
		if ip != "" {
			status["podIP"] = ip
		}
		return map[string]any{"metadata": meta, "spec": map[string]any{"nodeName": "node-a"}, "status": status}
	}
	var out strings.Builder
	testkit.NoError(t, testkit.Must(template.New("").Parse(text)).Execute(&out, map[string]any{"items": []any{
		pod("llama-0", "10.0.0.21", nil), pod("llama-1", "fd00::7", nil), pod("llama-2", "", nil),
		pod("llama-3", "10.0.0.24", map[string]any{"deletionTimestamp": "2026-01-01T00:00:00Z"}),
	}}))
	values := strings.ReplaceAll(strings.TrimPrefix(out.String(), "fleet:\n"), "\n  ", "\n")
	file, err := config.Read(strings.NewReader(strings.TrimPrefix(values, "  ") + `
models: [{name: m, context: 4096, profile: h200-llama-3.1-8b}]
tls: {cert: a, key: b, ca: c, trust_domain: cluster.local}
`))
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if len(file.Replicas) != 3 {
		t.Fatalf("%+v", file.Replicas)
	}
	for i, want := range []struct {
		id, address string
		drain       bool
	}{{"llama-0.9f2c", "10.0.0.21:9000", false}, {"llama-1.9f2c", "[fd00::7]:9000", false}, {"llama-3.9f2c", "10.0.0.24:9000", true}} {
		if r := file.Replicas[i]; r.ID != want.id || r.Address != want.address || r.Drain != want.drain || r.Host != "node-a" {
			t.Errorf("%+v, want %+v", r, want)
		}
	}
}
