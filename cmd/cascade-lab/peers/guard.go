package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	ours "github.com/cascadeinfer/cascade/wasm/rego"
)

// now is the time for all guards.
var now = time.Unix(1_763_721_600, 0)

// replan is one call of a guard: may a plan of four stages and eight replicas replace another?
type replan struct {
	change abi.Change
	parsed ast.Value
	plain  any
}

func replans(r *rand.Rand) ([]replan, error) {
	plan := func(e policies.Epoch) policies.Plan {
		p, low := policies.Plan{Model: "llama", Epoch: e}, policies.Tokens(0)
		for s := range 4 {
			high := low + 1000 + policies.Tokens(r.IntN(3000))
			if s == 3 {
				high = policies.Unbounded
			}
			p.Stages = append(p.Stages, policies.Stage{Low: low, High: high, Replicas: []policies.ReplicaID{
				policies.ReplicaID(fmt.Sprintf("replica-%d", 2*s)), policies.ReplicaID(fmt.Sprintf("replica-%d", 2*s+1))}})
			low = high
		}
		return p
	}
	all := make([]replan, 64)
	for n := range all {
		q := &all[n]
		q.change = abi.Change{Now: plan(7), Next: plan(8)}
		var w opa.Writer
		text := string(w.Input(q.change, now.Unix()))
		var err error
		if q.parsed, err = ast.ValueFromReader(strings.NewReader(text)); err != nil {
			return nil, err
		}
		if q.plain, err = ast.JSON(q.parsed); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// guards returns the peers with the example rules: with "deny" alone, and with all that a plan
// guard does: write the document, and evaluate "deny" and "warn".
func guards(ctx context.Context, b *builder, all []replan) ([]peer, error) {
	text := ours.ExampleRules()["plan.rego"]
	warn, cuts := strings.Index(text, "warn contains"), strings.Index(text, "cuts(stages)")
	if warn < 0 || cuts < warn {
		return nil, fmt.Errorf("the example rules are not as they were")
	}
	quiet := text[:warn] + text[cuts:]
	var peers []peer
	for _, o := range []struct{ name, target string }{{"deny: OPA, its evaluator (parsed input)", ""}, {"deny: OPA, its own wasm target", "wasm"}} {
		q, err := rego.New(rego.Query("data.cascade.plan.deny"), rego.Module("plan.rego", quiet), rego.Target(o.target)).PrepareForEval(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.name, err)
		}
		peers = append(peers, peer{o.name, func(n int) (string, error) {
			input := rego.EvalParsedInput(all[n].parsed)
			if o.target != "" {
				input = rego.EvalInput(all[n].plain)
			}
			r, err := q.Eval(ctx, input)
			if err != nil || len(r) != 1 {
				return "", fmt.Errorf("%d results, %w", len(r), err)
			}
			found, err := opa.Findings(r[0].Expressions[0].Value)
			return said(found), err
		}})
	}
	wasm := func(name, text string) error {
		code, err := ours.Build(ctx, map[string]string{"plan.rego": text})
		if err != nil {
			return err
		}
		i, err := b.instance(ctx, code)
		if err != nil {
			return err
		}
		peers = append(peers, peer{name, func(n int) (string, error) {
			d, denied, err := i.Guard(abi.Call{Now: policies.Micros(now.UnixMicro())}, all[n].change)
			if !denied {
				return said(nil), err
			}
			return said([]abi.Denial{d}), err
		}})
		return nil
	}
	if err := wasm("deny: our host, rules as a module", quiet); err != nil {
		return nil, err
	}
	return peers, wasm("deny and warn: our host, rules as a module", text)
}

// said formats the first finding. It does not allocate if there is none.
func said(found []abi.Denial) string {
	if len(found) == 0 {
		return "may be"
	}
	return fmt.Sprintf("%d at %d: %s", found[0].Code, found[0].Stage, found[0].Detail)
}
