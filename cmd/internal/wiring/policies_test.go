package wiring

import (
	"crypto/ed25519"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
)

// writeFile writes a file and makes its folder.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func publicKey(t *testing.T) string {
	t.Helper()
	_, secret, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := sign.EncodeKeys(secret)
	if err != nil {
		t.Fatal(err)
	}
	return string(public)
}

func TestPolicies(t *testing.T) {
	f := load(t, `speed: 10
policies:
  keys: [a.pub, b.pub]
  threshold: 2
  marks: marks
  cache: cache
  gates: {shadow: {calls: 5, soak: 20s, worse: -1}, canary: {soak: -1ns}, ladder: [7], kinds: {refine: {canary: {calls: 3, worse: 9}}}}
  limits: {bid-select: {fuel: 1000, pages: 7}, partition: {wall: 3s}}
`)
	if !f.ModulesEnabled() {
		t.Error("keys do not switch modules on")
	}
	writeFile(t, filepath.Join(f.Dir, "a.pub"), publicKey(t))
	writeFile(t, filepath.Join(f.Dir, "b.pub"), publicKey(t))
	p, err := f.Policies(identity.Migrator, "r/0", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Ring.Keys) != 2 || p.Ring.Threshold != 2 || p.Cache != filepath.Join(f.Dir, "cache") || p.MarksFile != filepath.Join(f.Dir, "marks", "migrator-"+identity.Escape("r/0")+".json") {
		t.Errorf("%+v", p)
	}
	if l := p.Limits[abi.Select]; l.Fuel != 1000 || l.Pages != 7 || p.Limits[abi.Partition].Wall != 3*time.Second {
		t.Errorf("%+v", p.Limits)
	}
	if g := p.Gates[abi.Place]; g.Kind != lifecycle.Place || g.Shadow.Calls != 5 || g.Shadow.Soak != 2*policies.Second || g.Shadow.Worse != -1 {
		t.Errorf("%+v", g)
	}
	if g, r := p.Gates[abi.Place], p.Gates[abi.Refine]; g.Canary.Calls != canaryCalls || r.Canary.Calls != 3 || r.Canary.Worse != 9 || r.Canary.Soak != -1 || g.Patience != promotion.DefaultPatience/10 {
		t.Errorf("gates of kinds: %+v, %+v", g, r)
	}
	// A number of calls that is right for requests is no number for plans.
	if g := p.Gates[abi.Partition]; g.Shadow.Calls != 0 || g.Shadow.Soak != 2*policies.Second || g.Shadow.Worse != -1 || g.Canary.Calls != 0 {
		t.Errorf("gates of a kind that decides for many: %+v", g)
	}
	if g, r := p.Gates[abi.Place], p.Gates[abi.Partition]; g.Canary.Compared != canaryCalls/2 || r.Canary.Compared != 1 || g.Shadow.Compared != 0 {
		t.Errorf("compared: %+v, %+v", g, r)
	}
	if got := f.Warnings(); len(got) != 1 || !strings.HasPrefix(got[0], "policies.gates.shadow.calls: 5 applies to kinds that decide for one request; partition, refine, guard are called") {
		t.Errorf("warnings: %q", got)
	}
	if g := p.Gates[abi.Place]; g.Canary.Soak != -1 || len(g.Ladder) != 1 || p.Limits[abi.Place].Wall != 0 {
		t.Errorf("%+v, %+v", g, p.Limits)
	}
	f.Fleet.Policies.Gates.Kinds = map[string]config.KindGates{"partition": {Shadow: config.Gate{Calls: 1}}, "refine": {Shadow: config.Gate{Calls: 9}}, "guard": {Shadow: config.Gate{Calls: 2}}}
	if got := f.Warnings(); len(got) != 0 {
		t.Errorf("all kinds have their own: %q", got)
	}
	f.Fleet.Policies.Gates.Kinds = nil
	f.Fleet.Policies.Native = true
	if f.ModulesEnabled() || len(f.Warnings()) != 0 {
		t.Errorf("native does not switch modules off: %q", f.Warnings())
	}
}

// TestPoliciesErrors: errors name the field and the file.
func TestPoliciesErrors(t *testing.T) {
	key := publicKey(t)
	for want, c := range map[string]struct {
		file, text, fields string
	}{
		"policies.keys[0]: open":                          {"x", "", ""},
		"k.pub: ":                                         {"k.pub", "no key", ""},
		"policies.keys: with threshold 2":                 {"k.pub", key, ", threshold: 2"},
		"policies.rules[0]: lstat":                        {"k.pub", key, ", rules: [none]"},
		"k.pub: no .rego file":                            {"k.pub/x", "", ", rules: [k.pub]"},
		"policies.data: open":                             {"k.pub", key, ", rules: [k.pub], data: none"},
		"k.pub: not a JSON object: invalid character '-'": {"k.pub", key, ", rules: [k.pub], data: k.pub"},
	} {
		f := load(t, "policies: {keys: [k.pub]"+c.fields+"}\n")
		writeFile(t, filepath.Join(f.Dir, c.file), c.text)
		_, err := f.Policies(identity.Control, "control", 0)
		if strings.Contains(c.fields, "rules") {
			_, err = f.RegoRules()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

func TestRegoRules(t *testing.T) {
	f := load(t, "policies: {keys: [k], rules: [rules, more.txt], data: d.json}\n")
	writeFile(t, filepath.Join(f.Dir, "rules", "a", "plan.rego"), "package a")
	writeFile(t, filepath.Join(f.Dir, "rules", "plan_test.rego"), "package b")
	writeFile(t, filepath.Join(f.Dir, "rules", "README"), "")
	writeFile(t, filepath.Join(f.Dir, "more.txt"), "package c")
	writeFile(t, filepath.Join(f.Dir, "d.json"), `{"limits": {"plan": {"smallest": 2}}}`)
	s, err := f.RegoRules()
	if err != nil || len(s.Files) != 2 || s.Files[filepath.Join(f.Dir, "rules", "a", "plan.rego")] != "package a" || s.Data["limits"] == nil {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestInstances: one per replica and one more, up to the number of processors.
func TestInstances(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	for _, c := range []struct {
		file           string
		replicas, want int
	}{{"", 0, 2}, {"", 1, 2}, {"", 4, 5}, {"", 40, 8}} {
		f := load(t, c.file)
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		f.Trusted = append(f.Trusted, key.Public().(ed25519.PublicKey))
		if p, err := f.Policies(identity.Migrator, "r0", c.replicas); err != nil || p.Instances != c.want {
			t.Errorf("%+v: %d, %v", c, p.Instances, err)
		}
	}
}

// TestBuiltinModules: a module for each kind that the fleet asks, and for no other.
func TestBuiltinModules(t *testing.T) {
	for file, want := range map[string]string{
		"":                         "partition-exact bid-least-load outlier place",
		"planner: {refine: on}\n":  "partition-exact bid-least-load outlier place refine-weighted",
		"preset: paper\n":          "partition-paper bid-paper outlier place refine-paper",
		"migration: {mode: off}\n": "partition-exact",
		"preset: round-robin\n":    "",
	} {
		f := load(t, file)
		var names []string
		for _, b := range f.BuiltinModules() {
			names = append(names, b.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: %s, want %s", file, got, want)
		}
	}
	if f := load(t, ""); !strings.Contains(f.UnusedReason(abi.Refine), "planner.refine") || f.UnusedReason(abi.Guard) != "" {
		t.Errorf("%q, %q", f.UnusedReason(abi.Refine), f.UnusedReason(abi.Guard))
	}
}
