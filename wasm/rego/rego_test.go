package rego

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/planguard"
)

var noon = time.Unix(1_763_721_600, 0)

func build(t testing.TB, data map[string]any) *Rules {
	r := testkit.Must(New(context.Background(), Config{Files: ExampleRules(), Data: data, Now: func() time.Time { return noon }}))
	t.Cleanup(func() { testkit.NoError(t, r.Close()) })
	return r
}

func limits(kind string, values map[string]any) map[string]any {
	return map[string]any{"limits": map[string]any{kind: values}}
}

// plan makes a plan from text such as "0:a,b 1000:c".
func plan(epoch policies.Epoch, text string) policies.Plan {
	p := policies.Plan{Model: "m", Epoch: epoch}
	for _, word := range strings.Fields(text) {
		var low int64
		from, ids, _ := strings.Cut(word, ":")
		testkit.Must(fmt.Sscan(from, &low))
		if n := len(p.Stages); n > 0 {
			p.Stages[n-1].High = policies.Tokens(low)
		}
		s := policies.Stage{Low: policies.Tokens(low), High: policies.Unbounded}
		for _, id := range strings.Split(ids, ",") {
			s.Replicas = append(s.Replicas, policies.ReplicaID(id))
		}
		p.Stages = append(p.Stages, s)
	}
	return p
}

// codes lists findings as "code" or "code@stage".
func codes(ds []abi.Denial) string {
	var out []string
	for _, d := range ds {
		if d.Detail == "" {
			panic("a finding without detail")
		}
		s := fmt.Sprint(d.Code)
		if d.Stage >= 0 {
			s += fmt.Sprintf("@%d", d.Stage)
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestExamplePlanRules(t *testing.T) {
	for _, c := range []struct {
		name, now, next, deny, warn string
		data                        map[string]any
	}{
		{"first plan", "", "0:a,b,c,d", "", "", nil},
		{"split", "0:a,b,c,d", "0:a,b 1000:c,d", "", "", nil},
		{"one alone", "0:a,b,c,d", "0:a,b,c 1000:d", "", "100@1", nil},
		{"too many stages", "0:a,b,c,d", "0:a 1000:b 2000:c 4000:d", "2", "100@0 100@1 100@2 100@3", nil},
		{"small stage", "0:a,b,c,d", "0:a,b,c 1000:d", "3@1", "100@1", limits("plan", map[string]any{"smallest": 2})},
		{"everybody moves", "0:a,b 100000:c,d", "0:c,d 100000:a,b", "1", "", nil},
		{"may move", "0:a,b 100000:c,d", "0:c,d 100000:a,b", "", "", limits("plan", map[string]any{"moved_share": 1})},
		{"freeze", "0:a,b 1000:c,d", "0:a,b 2000:c,d", "4", "", limits("plan", map[string]any{"freezes": []any{map[string]any{"from": 1763721600, "to": 1763721601}}})},
		{"freeze, same cuts", "0:a,b 1000:c,d", "0:a 1000:c,d", "", "100@0", limits("plan", map[string]any{"freezes": []any{map[string]any{"from": 1763721600, "to": 1763721601}}})},
		{"freeze is over", "0:a,b 1000:c,d", "0:a,b 2000:c,d", "", "", limits("plan", map[string]any{"freezes": []any{map[string]any{"from": 0, "to": 1763721600}}})},
	} {
		v, err := build(t, c.data).Plan(abi.Change{Now: plan(4, c.now), Next: plan(5, c.next)})
		if err != nil || codes(v.Denials) != c.deny || codes(v.Warnings) != c.warn {
			t.Errorf("%s: denies %q, warns %q, %v", c.name, codes(v.Denials), codes(v.Warnings), err)
		}
	}
}

func TestExampleSlotRules(t *testing.T) {
	base := Rollout{Slot: "refine/m", Kind: "refine", Name: "x", Version: "1.0.0", Generation: 1 << 60, Signers: []string{"a"}, Soaked: 60}
	for _, c := range []struct {
		name string
		edit func(*Rollout)
		deny string
		data map[string]any
	}{
		{"shadow", func(r *Rollout) { r.To = "shadow" }, "", nil},
		{"canary", func(r *Rollout) { r.From, r.To, r.Permille = "shadow", "canary", 10 }, "", nil},
		{"wider", func(r *Rollout) { r.From, r.To, r.PermilleBefore, r.Permille = "canary", "canary", 10, 100 }, "", nil},
		{"too wide", func(r *Rollout) { r.From, r.To, r.PermilleBefore, r.Permille = "canary", "canary", 10, 101 }, "5", nil},
		{"narrower", func(r *Rollout) {
			r.From, r.To, r.PermilleBefore, r.Permille, r.Soaked = "canary", "canary", 100, 1, 0
		}, "", nil},
		{"too soon", func(r *Rollout) { r.From, r.To, r.Permille, r.Soaked = "shadow", "canary", 10, 3 }, "6", nil},
		{"straight to active", func(r *Rollout) { r.To = "active" }, "3 4", nil},
		{"active", func(r *Rollout) { r.From, r.To = "canary", "active" }, "", nil},
		{"back", func(r *Rollout) { r.From, r.To, r.Soaked = "active", "shadow", 0 }, "", nil},
		{"stable", func(r *Rollout) { r.To, r.Stable = "active", true }, "2 3 4", nil},
		{"stable is allowed", func(r *Rollout) { r.To, r.Stable = "active", true }, "", limits("slot", map[string]any{"stable": []any{"refine/m"}})},
		{"one signer", func(r *Rollout) { r.To, r.Kind = "shadow", "partition" }, "7", nil},
		{"twice the same", func(r *Rollout) { r.To, r.Kind, r.Signers = "shadow", "partition", []string{"a", "a"} }, "7", nil},
		{"two signers", func(r *Rollout) { r.To, r.Kind, r.Signers = "shadow", "partition", []string{"a", "b"} }, "", nil},
		{"unknown stage", func(r *Rollout) { r.To = "everywhere" }, "1", nil},
		{"scope", func(r *Rollout) { r.From, r.To, r.Scope = "shadow", "canary", "group-a" }, "", nil},
	} {
		in := base
		c.edit(&in)
		v, err := build(t, c.data).Rollout(in)
		if err != nil || codes(v.Denials) != c.deny || len(v.Warnings) > 0 {
			t.Errorf("%s: denies %q, warns %q, %v", c.name, codes(v.Denials), codes(v.Warnings), err)
		}
	}
	in := base
	in.To, in.Version = "shadow", "1.0.0-rc.1"
	if v, err := build(t, nil).Rollout(in); err != nil || codes(v.Warnings) != "100" {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestFailClosed checks that rules without a valid answer return an error, which denies.
func TestFailClosed(t *testing.T) {
	ch := abi.Change{Next: plan(5, "0:a")}
	for name, c := range map[string]struct{ rules, want string }{
		"not a set":       {"package cascade.plan\ndeny := true", "not a set"},
		"no object":       {"package cascade.plan\ndeny contains \"no\"", "is not an object"},
		"no code":         {"package cascade.plan\ndeny contains {\"detail\": \"x\"}", `"code"`},
		"fraction":        {"package cascade.plan\ndeny contains {\"code\": 1.5}", `"code"`},
		"negative":        {"package cascade.plan\ndeny contains {\"code\": -1}", `"code"`},
		"far stage":       {"package cascade.plan\ndeny contains {\"code\": 1, \"stage\": 8}", `"stage"`},
		"detail":          {"package cascade.plan\ndeny contains {\"code\": 1, \"detail\": 7}", `"detail"`},
		"undefined":       {"package cascade.plan\ndeny := x if { x := input.nothing }", "no answer"},
		"too many":        {"package cascade.plan\ndeny contains {\"code\": i} if some i in numbers.range(1, 65)", "65 findings"},
		"endless":         {"package cascade.plan\ndeny contains {\"code\": 1} if { r := numbers.range(1, 500); some i in r; some j in r; some k in r; i > j; j > k; k > i }", "out of fuel"},
		"only slot rules": {"package cascade.slot\ndeny contains {\"code\": 1}", "no rules for this question"},
	} {
		r, err := New(context.Background(), Config{Files: map[string]string{"x.rego": c.rules}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		defer r.Close()
		_, err = r.Check(ch)
		testkit.WantError(t, err, c.want)
		if err := planguard.Check(ch, []planguard.NamedGuard{{Name: "site", Guard: r}}); err == nil || !strings.HasPrefix(err.Error(), "plan denied: site, ") {
			t.Errorf("%s: the gate says %v", name, err)
		}
	}
}

// TestRulesArePure checks that built-in functions that depend on more than their arguments
// are undefined.
func TestRulesArePure(t *testing.T) {
	for _, call := range []string{`http.send({"method": "get", "url": "http://127.0.0.1"})`, "time.now_ns()", `rand.intn("x", 5)`, `uuid.rfc4122("x")`,
		`net.lookup_ip_addr("localhost")`, "opa.runtime()"} {
		_, err := New(context.Background(), Config{Files: map[string]string{"x.rego": "package cascade.plan\ndeny contains {\"code\": 1} if { x := " + call + "; x }"}})
		testkit.WantError(t, err, "undefined function")
	}
}

func TestNewRefuses(t *testing.T) {
	for name, c := range map[string]Config{
		"nothing":       {},
		"no such rule":  {Files: map[string]string{"x.rego": "package cascade.plan\nwarn contains 1"}},
		"syntax":        {Files: map[string]string{"x.rego": "package cascade.plan\ndeny contains"}},
		"type error":    {Files: map[string]string{"x.rego": "package cascade.plan\ndeny contains {\"code\": 1} if count(1) == 1"}},
		"too long":      {Files: map[string]string{"x.rego": "package cascade.plan\n#" + strings.Repeat("x", MaxSource)}},
		"no JSON":       {Files: ExampleRules(), Data: map[string]any{"limits": func() {}}},
		"old rego":      {Files: map[string]string{"x.rego": "package cascade.plan\ndeny[x] { x := 1 }"}},
		"another place": {Files: map[string]string{"x.rego": "package main\ndeny contains {\"code\": 1}"}},
	} {
		if _, err := New(context.Background(), c); err == nil || !strings.HasPrefix(err.Error(), "rego: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDataIsCopied checks that later changes of the caller's data have no effect.
func TestDataIsCopied(t *testing.T) {
	data := limits("plan", map[string]any{"smallest": 2})
	r := build(t, data)
	clear(data)
	ds, err := r.Check(abi.Change{Next: plan(5, "0:a,b,c 1000:d")})
	if err != nil || codes(ds) != "3@1" {
		t.Errorf("%q, %v", codes(ds), err)
	}
}
