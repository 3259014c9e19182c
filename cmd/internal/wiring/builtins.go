package wiring

import (
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/policy"
)

// NativePolicies returns the policies of this fleet's preset that decide where no
// module does: those of the control plane, and those of a replica's market m.
func (f *Fleet) NativePolicies(m market.Config) policy.Native {
	n := policy.Native{
		Partitioner: partition.Exact{Slack: partition.DefaultSlack}, Guard: allowAll{}, Refiner: m.Refiner,
		Quoter: m.Machine.Quoter, Selector: m.Machine.Selector, Detector: m.Detector, Placer: m.Placer,
	}
	if f.Preset == config.PresetPaper {
		n.Partitioner = partition.TwoPhase{Objective: partition.Snapshot}
	}
	if n.Refiner == nil {
		n.Refiner = f.builtinRefiner()
	}
	if n.Quoter == nil {
		n.Quoter = bidask.Backlog{}
	}
	if n.Selector == nil {
		n.Selector = bidask.LeastLoad{}
	}
	if n.Detector == nil {
		n.Detector = f.outlierDetector(policies.Cost{})
	}
	if n.Placer == nil {
		n.Placer = f.placer(engineCosts{})
	}
	return n
}

// allowAll is the guard of a fleet without a guard module: the Rego rules and the
// built-in invariants apply in any case.
type allowAll struct{}

// Guard implements policy.Guard.
func (allowAll) Guard(abi.Change) (abi.Denial, bool) { return abi.Denial{}, false }

// BuiltinModule is a built-in policy as a module of wasm/plugins.
type BuiltinModule struct {
	Name          string // of the file, without .wasm
	Kinds         []abi.Kind
	Configuration []byte // with which it decides as NativePolicies do
}

// BuiltinModules returns the modules that decide as NativePolicies do, for every
// kind that this fleet calls and that has a module. The settings of modules are those of the
// whole fleet: where replicas have different costs, none replaces a policy that counts with costs.
func (f *Fleet) BuiltinModules() []BuiltinModule {
	partitioner, bids, refiner := "partition-exact", "bid-least-load", "refine-weighted"
	if f.Preset == config.PresetPaper {
		partitioner, bids, refiner = "partition-paper", "bid-paper", "refine-paper"
	}
	all := []BuiltinModule{
		{Name: partitioner, Kinds: []abi.Kind{abi.Partition}},
		{Name: bids, Kinds: []abi.Kind{abi.Quote, abi.Select}},
		{Name: refiner, Kinds: []abi.Kind{abi.Refine}},
	}
	cost, one, copies := f.commonCosts()
	if one || f.Preset == config.PresetPaper {
		detector := f.outlierDetector(cost.Cost)
		all = append(all, BuiltinModule{Name: "outlier", Kinds: []abi.Kind{abi.Outlier}, Configuration: fmt.Appendf(nil, "percent %d\nleast %d\n", detector.Percent, detector.MinExcess)})
	}
	switch {
	case f.Preset == config.PresetPaper:
		all = append(all, BuiltinModule{Name: "place", Kinds: []abi.Kind{abi.Place}})
	case one && copies:
		p := f.forecast(cost)
		all = append(all, BuiltinModule{Name: "place-forecast", Kinds: []abi.Kind{abi.Place}, Configuration: fmt.Appendf(nil, "iteration %d\nsequence %d\nprompt %d\nprompt2 %d\nheld %d\ncopied %d\nmargin %d\nshorter-margin %d\n",
			p.Prices.Iteration, p.Prices.Sequence, p.Prices.Prompt, p.Prices.Prompt2, p.Prices.Held, p.Prices.Copied, p.Margin, p.ShorterMargin)})
	}
	return slices.DeleteFunc(all, func(b BuiltinModule) bool { return f.UnusedReason(b.Kinds[0]) != "" })
}

// commonCosts returns the costs of the replicas, whether all compute at the same cost, and whether all copy at
// the same.
func (f *Fleet) commonCosts() (common engineCosts, compute, copy bool) {
	compute, copy = true, true
	for i, r := range f.Fleet.Replicas {
		c := f.costs(r)
		if i == 0 {
			common = c
		}
		compute, copy = compute && c.Cost == common.Cost, copy && c.copied == common.copied
	}
	return common, compute, copy
}

// UnusedReason returns why nothing in this fleet calls the policies of a kind, and
// what to change so that they are called; "" where they are called.
func (f *Fleet) UnusedReason(k abi.Kind) string {
	switch {
	case k == abi.Partition && f.Preset == config.PresetRoundRobin:
		return "preset round-robin always has one stage"
	case k == abi.Partition, k == abi.Guard:
		return ""
	case !f.Places():
		return "no request of this fleet is placed by load or migrates: migration.mode is off"
	case !f.Migrates() && (k == abi.Quote || k == abi.Select || k == abi.Outlier):
		return "no request of this fleet migrates: migration.mode is place"
	case k == abi.Refine && !f.Refines():
		return `boundaries of this fleet move only with plans: set planner.refine: "on" in the fleet file, and restart`
	}
	return ""
}

// ModulesDir returns the directory in which the control planes keep the modules
// that were pushed; "" for memory, etcd and Kubernetes.
func (f *Fleet) ModulesDir() string {
	if f.StateDir() == "" {
		return ""
	}
	return filepath.Join(f.StateDir(), "modules")
}

// StateDir returns the directory of the fleet's state; "" for none, for etcd and for Kubernetes.
func (f *Fleet) StateDir() string {
	if f.RemoteState() {
		return ""
	}
	return f.resolvePath(f.State)
}
