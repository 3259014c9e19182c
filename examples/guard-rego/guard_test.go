// Package guardrego_test builds the rules of this folder into a module, and runs that as a
// guard in our host.
package guardrego_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/planguard"
	"github.com/cascadeinfer/cascade/wasm/rego"
)

// settings are those of policy.rego's comment.
const settings = `{"guard": {"window": {"opens": 22, "closes": 5}, "stages": 1, "keep": ["k"]}}`

const night, day = 1_763_766_000, 1_763_726_400 // 23:00 and 12:00, Unix seconds

// guards are the rules as a module.
type guards struct {
	module *host.Module
	wasm   *host.Instance
	now    int64
}

func start(t testing.TB, config string) *guards {
	t.Helper()
	guesttest.SkipUnderRace(t)
	text, err := os.ReadFile("policy.rego")
	if err != nil {
		t.Fatal(err)
	}
	g, ctx, files := &guards{now: day}, context.Background(), map[string]string{"policy.rego": string(text)}
	code, err := rego.Build(ctx, files)
	if err != nil {
		t.Fatal(err)
	}
	if g.module, err = host.Load(ctx, host.Config{}, code); err != nil {
		t.Fatal(err)
	}
	if g.wasm, err = g.module.Instantiate(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.wasm.Close(); g.module.Close() })
	if err := g.wasm.Configure(abi.Call{}, []byte(config)); err != nil {
		t.Fatal(err)
	}
	return g
}

// ask returns "code@stage" of a denial.
func (g *guards) ask(t *testing.T, c abi.Change) string {
	t.Helper()
	d, denied, err := g.wasm.Guard(abi.Call{Now: policies.Micros(g.now) * policies.Second}, c)
	if err != nil {
		t.Fatal(err)
	}
	if !denied {
		return ""
	}
	return fmt.Sprintf("%d@%d", d.Code, d.Stage)
}

// plan reads "0:a,b 4096:c".
func plan(epoch policies.Epoch, text string) policies.Plan {
	p := policies.Plan{Model: "llama", Epoch: epoch}
	for _, word := range strings.Fields(text) {
		from, names, _ := strings.Cut(word, ":")
		var low policies.Tokens
		if _, err := fmt.Sscan(from, &low); err != nil {
			panic(err)
		}
		s := policies.Stage{Low: low, High: policies.Unbounded}
		for _, id := range strings.Split(names, ",") {
			s.Replicas = append(s.Replicas, policies.ReplicaID(id))
		}
		if n := len(p.Stages); n > 0 {
			p.Stages[n-1].High = low
		}
		p.Stages = append(p.Stages, s)
	}
	return p
}

func TestGuard(t *testing.T) {
	g, free := start(t, settings), start(t, "")
	for _, c := range []struct {
		name, now, next string
		at              int64
		want            string
	}{
		{"the first plan, whenever", "", "0:a 4096:b 8192:k", day, ""},
		{"a new replica, whenever", "0:a 4096:b", "0:a,c 4096:b", day, ""},
		{"a stage moves by night", "0:a 4096:b", "0:a 5000:b", night, ""},
		{"a stage moves by day", "0:a 4096:b", "0:a 5000:b", day, "1@-1"},
		{"two stages at once", "0:a 4096:b 8192:c", "0:a 5000:b 9000:c", night, "2@-1"},
		{"two come at once", "0:a,b,c", "0:a 4096:b 8192:c", night, "2@-1"},
		{"one that is kept", "0:a,k 4096:b", "0:a 4096:b,k", night, "3@1"},
		{"all that is wrong, the lowest code", "0:a,k 4096:b 8192:c", "0:a 5000:b 9000:c,k", day, "1@-1"},
	} {
		change := abi.Change{Next: plan(8, c.next)}
		if c.now != "" {
			change.Now = plan(7, c.now)
		}
		g.now = c.at
		if got := g.ask(t, change); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// Without settings one stage may change at any time.
	if got := free.ask(t, abi.Change{Now: plan(7, "0:a 4096:b"), Next: plan(8, "0:a 5000:b")}); got != "" {
		t.Errorf("without settings: %q", got)
	}
}

// TestGate puts the module where a control plane has it.
func TestGate(t *testing.T) {
	g := start(t, settings)
	err := planguard.Check(abi.Change{Now: plan(7, "0:a 4096:b"), Next: plan(8, "0:a 5000:b")}, []planguard.NamedGuard{{Name: "site", Guard: planguard.PolicyGuard{Policy: asked{g}}}})
	if err == nil || err.Error() != `plan denied: site, rule 1, "stages change in the maintenance window only"` {
		t.Error(err)
	}
}

type asked struct{ *guards }

func (a asked) Guard(c abi.Change) (abi.Denial, bool) {
	d, denied, err := a.wasm.Guard(abi.Call{Now: policies.Micros(a.now) * policies.Second}, c)
	return d, denied || err != nil
}
