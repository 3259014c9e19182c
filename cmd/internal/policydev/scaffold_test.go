package policydev

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	opatest "github.com/open-policy-agent/opa/v1/tester"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// run runs a command in a folder and returns its output.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	path := testkit.Tool(t, name)
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said)
	}
}

// newPolicy writes a new policy and returns its folder.
func newPolicy(t *testing.T, kind, lang string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "my-"+kind)
	testkit.Must(New(NewConfig{Dir: dir, Kind: kind, Lang: lang}))
	return dir
}

// TestNewPolicies writes a new policy of each kind and language, and runs its own tests. The
// tests of cmd/cascade build the modules of some.
func TestNewPolicies(t *testing.T) {
	for _, kind := range NewKinds() {
		t.Run(kind, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "my-"+kind)
			b, err := New(NewConfig{Dir: dir, Kind: kind, Lang: "go"})
			testkit.NoError(t, err)
			if len(b.Files) != 5 || b.Sources == "" {
				t.Errorf("%+v", b)
			}
			run(t, dir, "go", "test", "./...")
			if _, err := New(NewConfig{Dir: dir, Kind: kind, Lang: "go"}); err == nil {
				t.Error("a policy is written over another")
			}
		})
		t.Run(kind+" in C", func(t *testing.T) {
			run(t, newPolicy(t, kind, langC), "cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "main.c")
		})
	}
}

// TestNewRules runs the Rego tests of new rules, as "opa test" does.
func TestNewRules(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "at-night")
	b, err := New(NewConfig{Dir: dir, Kind: "guard", Lang: LangRego})
	if err != nil || len(b.Files) != 5 {
		t.Fatalf("%+v, %v", b, err)
	}
	rules, store, err := opatest.Load([]string{filepath.Join(dir, "policy.rego"), filepath.Join(dir, "policy_test.rego")}, nil)
	testkit.NoError(t, err)
	results, err := opatest.NewRunner().SetStore(store).SetModules(rules).Run(context.Background(), rules)
	testkit.NoError(t, err)
	n := 0
	for r := range results {
		if n++; !r.Pass() {
			t.Errorf("%s: %v", r.Name, r)
		}
	}
	if n != 5 {
		t.Errorf("%d tests ran", n)
	}
	built, err := Build(context.Background(), dir, "", "")
	if err != nil || built.Language != "rego" {
		t.Errorf("%+v, %v", built, err)
	}
}

func TestNewInsideOfACheckoutIsRelative(t *testing.T) {
	root := t.TempDir()
	testkit.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module "+modulePath+"\n"), 0o666))
	dir := filepath.Join(root, "examples", "mine")
	testkit.Must(New(NewConfig{Dir: dir, Kind: "bid", Lang: langGo}))
	mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil || !strings.Contains(string(mod), "replace "+modulePath+" => ../..\n") {
		t.Errorf("%s, %v", mod, err)
	}
}

func TestNewRefuses(t *testing.T) {
	dir := t.TempDir()
	for want, c := range map[string]NewConfig{
		`name "Mine"`:     {Dir: filepath.Join(dir, "Mine"), Kind: "bid", Lang: "go"},
		`kind "bids"`:     {Dir: filepath.Join(dir, "a"), Kind: "bids", Lang: "go"},
		`language "rust"`: {Dir: filepath.Join(dir, "a"), Kind: "bid", Lang: "rust"},
		"of kind guard":   {Dir: filepath.Join(dir, "a"), Kind: "bid", Lang: "rego"},
		"is no checkout":  {Dir: filepath.Join(dir, "a"), Kind: "bid", Lang: "go", Sources: dir},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Error("what was refused left something")
	}
}
