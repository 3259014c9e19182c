package policyhost_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/rego"
)

// largeFleet is the number of replicas of one model for which a guard must be able to judge
// plans.
const largeFleet = 10_000

// largePlan returns a plan with eight stages of replicas whose names have 64 bytes. The
// first replicas are missing, and the cuts are at multiples of a number.
func largePlan(epoch policies.Epoch, missing int, cut policies.Tokens) policies.Plan {
	const stages = 8
	p := policies.Plan{Model: "meta-llama/Llama-3.1-8B-Instruct", Epoch: epoch}
	for s := range stages {
		stage := policies.Stage{Low: cut * policies.Tokens(s), High: cut * policies.Tokens(s+1)}
		if s == stages-1 {
			stage.High = policies.Unbounded
		}
		for i := max(missing, largeFleet*s/stages); i < max(missing+s+1, largeFleet*(s+1)/stages); i++ {
			stage.Replicas = append(stage.Replicas, policies.ReplicaID(fmt.Sprintf("%-64d", i)))
		}
		p.Stages = append(p.Stages, stage)
	}
	return p
}

// TestLargestPlans checks that guards in Rego and in WebAssembly judge plans of a large
// fleet within half of their default limits, repeatedly.
func TestLargestPlans(t *testing.T) {
	guesttest.SkipUnderRace(t)
	dir := filepath.Join(t.TempDir(), "my-guard")
	if _, err := policydev.New(policydev.NewConfig{Dir: dir, Kind: "guard", Lang: "go"}); err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("../../../examples/guard-rego/policy.rego")
	testkit.NoError(t, err)
	inRego, err := rego.Build(t.Context(), map[string]string{"policy.rego": string(rules)})
	testkit.NoError(t, err)
	now := largePlan(7, 0, 4096)
	same, fewer, other := largePlan(8, 1, 4096), largePlan(8, largeFleet*3/4, 4096), largePlan(8, 0, 5000)
	for _, guard := range []struct {
		name   string
		code   []byte
		config string
		want   map[string]uint32 // codes of denials
	}{
		{"Go", guesttest.Build(t, dir), "", map[string]uint32{"fewer": 2}},
		{"Rego", inRego, `{"guard": {"stages": 1, "keep": ["nobody", "1"]}}`, map[string]uint32{"other": 2}},
	} {
		m := guesttest.Load(t, guard.code, host.Config{})
		g := guesttest.Start(t, m)
		if err := g.Configure(abi.Call{}, []byte(guard.config)); err != nil && guard.config != "" {
			t.Fatal(err)
		}
		limit, fuel, wall := m.Limit(abi.Guard), int64(0), time.Duration(0)
		for range 4 {
			for name, next := range map[string]policies.Plan{"same": same, "fewer": fewer, "other": other} {
				began := time.Now()
				d, denied, err := g.Guard(abi.Call{}, abi.Change{Now: now, Next: next})
				wall = max(wall, time.Since(began))
				if err != nil || d.Code != guard.want[name] || denied != (d.Code != 0) {
					t.Fatalf("%s, %s: %+v, %v, %v; want code %d", guard.name, name, d, denied, err, guard.want[name])
				}
				fuel = max(fuel, g.Fuel())
			}
		}
		size, _ := abi.EncodeGuardCall(nil, abi.Call{}, abi.Change{Now: now, Next: other})
		memory, first := g.Memory()
		t.Logf("%s: a frame of %d KiB; at most %d of %d ticks, %v of %v, memory %d of at first %d KiB", guard.name, size>>10, fuel, limit.Fuel, wall, limit.Wall, memory>>10, first>>10)
		if fuel > limit.Fuel/2 || size > limit.Frame*3/4+limit.Frame/8 || memory > limit.Pages<<16*3/4 {
			t.Errorf("%s: there is no head room: %d of %d ticks, %d of %d bytes, %d of %d bytes of memory", guard.name, fuel, limit.Fuel, size, limit.Frame, memory, limit.Pages<<16)
		}
	}
}
