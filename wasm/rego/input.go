package rego

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/internal/regodocument"
	"github.com/cascadeinfer/cascade/wasm/planguard"
)

var _ planguard.Guard = (*Rules)(nil)

// Plan evaluates the rules of cascade.plan.
func (r *Rules) Plan(ctx context.Context, c abi.Change) (Verdict, error) {
	var w regodocument.Writer
	input, err := ast.ValueFromReader(bytes.NewReader(w.Input(c, r.now().Unix())))
	if err != nil {
		return Verdict{}, fmt.Errorf("rego: input: %w", err)
	}
	return r.ask(ctx, r.plan, input)
}

// Check implements planguard.Guard. It returns the denials of Plan.
func (r *Rules) Check(c abi.Change) ([]abi.Denial, error) {
	v, err := r.Plan(context.Background(), c)
	return v.Denials, err
}

// Rollout is a step of a policy that an operator requests. The input of the rules is
//
//	{"now": 1763721600, "slot": "refine/llama", "kind": "refine", "name": "my-refiner",
//	 "version": "1.2.0", "generation": 12, "signers": ["34750f98bd59fcfc"],
//	 "from": "shadow", "to": "canary", "permille": 10, "permille_before": 1,
//	 "scope": "", "stable": false, "soaked": 120}
type Rollout struct {
	Slot, Kind, Name, Version string
	Generation                uint64
	Signers                   []string // the IDs of the keys
	From, To                  string   // names of lifecycle.Goal; From may be ""
	Permille, PermilleBefore  int
	Scope                     string
	Stable                    bool
	Soaked                    float64 // seconds since it has the goal From
}

// Rollout evaluates the rules of cascade.slot.
func (r *Rules) Rollout(ctx context.Context, o Rollout) (Verdict, error) {
	signers := make([]any, 0, len(o.Signers))
	for _, s := range o.Signers {
		signers = append(signers, s)
	}
	input, err := ast.InterfaceToValue(map[string]any{
		"slot": o.Slot, "kind": o.Kind, "name": o.Name, "version": o.Version,
		"generation": json.Number(fmt.Sprint(o.Generation)), "signers": signers,
		"from": o.From, "to": o.To, "permille": o.Permille, "permille_before": o.PermilleBefore,
		"scope": o.Scope, "stable": o.Stable, "soaked": o.Soaked, "now": r.now().Unix(),
	})
	if err != nil {
		return Verdict{}, fmt.Errorf("rego: input: %w", err)
	}
	return r.ask(ctx, r.slot, input)
}
