package rego

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adopt"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/gate"
)

var _ gate.Guard = (*Rules)(nil)

// PlanInput is what rules see of a change of plan:
//
//	{"model": "llama", "now": 1763721600, "moves": 2,
//	 "before": {"epoch": 7, "stages": [{"low": 0, "high": 4096, "replicas": ["a"]},
//	                                   {"low": 4096, "replicas": ["b", "c"]}]},
//	 "after": {…}}
//
// A stage without "high" has no end. "moves" counts the replicas that the change
// gives another range (adopt.Moves). "before" has no stages where there is no
// plan yet.
func PlanInput(c abi.Change) map[string]any {
	return map[string]any{
		"model": c.Next.Model, "before": planInput(c.Now), "after": planInput(c.Next), "moves": adopt.Moves(c.Now, c.Next),
	}
}

func planInput(p policies.Plan) map[string]any {
	stages := make([]any, 0, len(p.Stages))
	for _, s := range p.Stages {
		replicas := make([]any, 0, len(s.Replicas))
		for _, id := range s.Replicas {
			replicas = append(replicas, string(id))
		}
		stage := map[string]any{"low": int64(s.Low), "replicas": replicas}
		if s.High != policies.Unbounded {
			stage["high"] = int64(s.High)
		}
		stages = append(stages, stage)
	}
	return map[string]any{"epoch": json.Number(fmt.Sprint(uint64(p.Epoch))), "stages": stages}
}

// Plan asks the rules of cascade.plan.
func (r *Rules) Plan(ctx context.Context, c abi.Change) (Verdict, error) {
	return r.ask(ctx, r.plan, PlanInput(c))
}

// Check implements gate.Guard: the denials of Plan.
func (r *Rules) Check(c abi.Change) ([]abi.Denial, error) {
	v, err := r.Plan(context.Background(), c)
	return v.Denials, err
}

// Rollout is a step of a policy that an operator asks for. Rules see it as
//
//	{"now": 1763721600, "slot": "refine/llama", "kind": "refine", "name": "my-refiner",
//	 "version": "1.2.0", "generation": 12, "signers": ["34750f98bd59fcfc"],
//	 "from": "shadow", "to": "canary", "permille": 10, "permille_before": 1,
//	 "scope": "", "proven": false, "soaked": 120}
type Rollout struct {
	Slot, Kind, Name, Version string
	Generation                uint64
	Signers                   []string // the keys' names
	From, To                  string   // stages, as slot.Goal names them; From may be ""
	Permille, PermilleBefore  int
	Scope                     string
	Proven                    bool
	Soaked                    float64 // seconds that it has been at From
}

// Rollout asks the rules of cascade.slot.
func (r *Rules) Rollout(ctx context.Context, o Rollout) (Verdict, error) {
	signers := make([]any, 0, len(o.Signers))
	for _, s := range o.Signers {
		signers = append(signers, s)
	}
	return r.ask(ctx, r.slot, map[string]any{
		"slot": o.Slot, "kind": o.Kind, "name": o.Name, "version": o.Version,
		"generation": json.Number(fmt.Sprint(o.Generation)), "signers": signers,
		"from": o.From, "to": o.To, "permille": o.Permille, "permille_before": o.PermilleBefore,
		"scope": o.Scope, "proven": o.Proven, "soaked": o.Soaked,
	})
}

// finding reads one element of a set.
func finding(x any) (abi.Denial, error) {
	object, ok := x.(map[string]any)
	if !ok {
		return abi.Denial{}, fmt.Errorf(`rego: the finding %.100q is not an object with a "code"`, fmt.Sprint(x))
	}
	code, err := whole(object["code"], 0, math.MaxUint32)
	if err != nil {
		return abi.Denial{}, fmt.Errorf(`rego: a finding's "code": %w`, err)
	}
	d := abi.Denial{Code: uint32(code), Stage: -1}
	if stage, there := object["stage"]; there {
		n, err := whole(stage, -1, policies.MaxStages-1)
		if err != nil {
			return abi.Denial{}, fmt.Errorf(`rego: a finding's "stage": %w`, err)
		}
		d.Stage = int(n)
	}
	if detail, there := object["detail"]; there {
		text, ok := detail.(string)
		if !ok {
			return abi.Denial{}, fmt.Errorf(`rego: a finding's "detail" is a %T, not a string`, detail)
		}
		d.Detail = text[:min(len(text), abi.MaxDetail)]
	}
	return d, nil
}

// whole reads a number from low to high.
func whole(x any, low, high int64) (int64, error) {
	n, ok := x.(json.Number)
	if !ok {
		return 0, fmt.Errorf("a %T, not a number", x)
	}
	i, err := n.Int64()
	if err != nil || i < low || i > high {
		return 0, fmt.Errorf("%.40s is not a whole number from %d to %d", n, low, high)
	}
	return i, nil
}
