package rego

import (
	"encoding/json"
	"fmt"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/opa"
	"github.com/cascadeinfer/cascade/wasm/planguard"
)

var _ planguard.Guard = (*Rules)(nil)

// Plan evaluates the rules of cascade.plan.
func (r *Rules) Plan(c abi.Change) (Verdict, error) {
	var w opa.Writer
	return r.ask(opa.PlanDeny, opa.PlanWarn, w.Input(c, r.now().Unix()))
}

// Check implements planguard.Guard. It returns the denials of Plan.
func (r *Rules) Check(c abi.Change) ([]abi.Denial, error) {
	v, err := r.Plan(c)
	return v.Denials, err
}

// Rollout is a step of a policy that an operator requests. The input of the rules is
//
//	{"now": 1763721600, "slot": "refine/llama", "kind": "refine", "name": "my-refiner",
//	 "version": "1.2.0", "generation": 12, "signers": ["34750f98bd59fcfc"],
//	 "from": "shadow", "to": "canary", "permille": 10, "permille_before": 1,
//	 "scope": "", "stable": false, "soaked": 120}
type Rollout struct {
	Slot           string   `json:"slot"`
	Kind           string   `json:"kind"`
	Name           string   `json:"name"`
	Version        string   `json:"version"`
	Generation     uint64   `json:"generation"`
	Signers        []string `json:"signers"` // the IDs of the keys
	From           string   `json:"from"`    // the name of a lifecycle.Goal, or ""
	To             string   `json:"to"`      // likewise, never ""
	Permille       int      `json:"permille"`
	PermilleBefore int      `json:"permille_before"`
	Scope          string   `json:"scope"`
	Stable         bool     `json:"stable"`
	Soaked         float64  `json:"soaked"` // seconds since it has the goal From
}

// Rollout evaluates the rules of cascade.slot.
func (r *Rules) Rollout(o Rollout) (Verdict, error) {
	if o.Signers == nil {
		o.Signers = []string{}
	}
	input, err := json.Marshal(struct {
		Rollout
		Now int64 `json:"now"`
	}{o, r.now().Unix()})
	if err != nil {
		return Verdict{}, fmt.Errorf("rego: input: %w", err)
	}
	return r.ask(opa.SlotDeny, opa.SlotWarn, input)
}
