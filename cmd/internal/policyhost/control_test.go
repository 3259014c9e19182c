package policyhost

import (
	"crypto/ed25519"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/wiring"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/rego"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/control"
)

// plan returns a plan with one stage for each word, of the replicas in the word.
func plan(epoch policies.Epoch, stages ...string) policies.Plan {
	p := policies.Plan{Model: "m", Epoch: epoch}
	for i, s := range stages {
		stage := policies.Stage{Low: policies.Tokens(1000 * i), High: policies.Tokens(1000 * (i + 1))}
		if i == len(stages)-1 {
			stage.High = policies.Unbounded
		}
		for _, id := range strings.Fields(s) {
			stage.Replicas = append(stage.Replicas, policies.ReplicaID(id))
		}
		p.Stages = append(p.Stages, stage)
	}
	return p
}

// TestSiteRules checks that plans are checked against the invariants and then the site's
// rules.
func TestSiteRules(t *testing.T) {
	c, err := NewControl(t.Context(), ControlConfig{Site: wiring.RegoRules{Files: rego.ExampleRules(), Data: map[string]any{
		"limits": map[string]any{"plan": map[string]any{"smallest": 2}},
	}}})
	testkit.NoError(t, err)
	before := plan(4, "a b c d")
	for want, after := range map[string]policies.Plan{
		"":                           plan(5, "a b", "c d"),
		"site, rule 3, stage 1":      plan(5, "a b c", "d"),
		"epoch 4 after 4":            plan(4, "a b", "c d"),
		"needs at least one replica": plan(5, "a b c d", ""),
	} {
		err := c.Check(before, after)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", after, err, want)
		}
	}
	own := partition.Exact{}
	if c.Wrap("m", own) != own {
		t.Error("a control plane without modules asks others than its own planner")
	}
}

// TestRulesForModulesAlone checks that rules about rollouts alone do not affect plans.
func TestRulesForModulesAlone(t *testing.T) {
	c, err := NewControl(t.Context(), ControlConfig{Site: wiring.RegoRules{Files: map[string]string{"slot.rego": rego.ExampleRules()["slot.rego"]}}})
	testkit.NoError(t, err)
	if err := c.Check(plan(1, "a b"), plan(2, "a", "b")); err != nil {
		t.Error(err)
	}
	if _, err := NewControl(t.Context(), ControlConfig{Site: wiring.RegoRules{Files: map[string]string{"bad.rego": "package cascade.plan\ndeny contains x if {"}}}); err == nil || !strings.Contains(err.Error(), "policies.rules: rego: ") || !strings.Contains(err.Error(), "bad.rego:2") {
		t.Errorf("bad rules: %v", err)
	}
}

// stubborn denies every plan and proposes a useless partition.
type stubborn struct{}

func (stubborn) Guard(abi.Change) (abi.Denial, bool) {
	return abi.Denial{Code: 9, Stage: -1, Detail: "no"}, true
}

func (stubborn) Partition(w policies.Workload) (policies.Partition, error) {
	return policies.Partition{Counts: []int{w.Replicas}, Cost: -1}, nil
}

// TestSlotsDecide checks that a control plane obeys the denial of its guard slot and
// computes the cost of a proposed partition itself.
func TestSlotsDecide(t *testing.T) {
	key, _, err := ed25519.GenerateKey(nil)
	testkit.NoError(t, err)
	set, err := slothost.New(slothost.Config{Kinds: wiring.ControlKinds, Native: slothost.Native{Partitioner: stubborn{}, Guard: stubborn{}}, Ring: sign.Ring{Fleet: sign.DefaultFleet, Keys: []ed25519.PublicKey{key}, Threshold: 1}})
	testkit.NoError(t, err)
	c, err := NewControl(t.Context(), ControlConfig{Set: set})
	testkit.NoError(t, err)
	if err := c.Check(plan(1, "a b"), plan(2, "a", "b")); err == nil || !strings.Contains(err.Error(), `plan denied: guard, rule 9, "no"`) {
		t.Error(err)
	}
	w := policytest.ChatWorkload(policies.BucketEdges(131072, 4), 16, 0.6, 1)
	own, err := partition.Exact{}.Partition(w)
	if err != nil || len(own.Cuts) == 0 {
		t.Fatal(own, err)
	}
	got, err := c.Wrap("m", partition.Exact{}).Partition(w)
	if err != nil || len(got.Cuts) != len(own.Cuts) {
		t.Errorf("one stage costs more, and is taken: %+v, %v", got, err)
	}
}

// TestIdleSlot checks that a module for an unused slot is not admitted, and that the
// error names the setting that enables the slot.
func TestIdleSlot(t *testing.T) {
	p := wiring.Policies{}
	p.UnusedReason[abi.Refine] = "only preset paper"
	_, err := NewAdmission(p, &Control{}).Admit(t.Context(), control.Push{Slot: "refine"})
	if err == nil || !strings.Contains(err.Error(), "nothing would ask it: only preset paper") {
		t.Error(err)
	}
}
