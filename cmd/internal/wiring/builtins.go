package wiring

import (
	"slices"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/slothost"
)

// ControlKinds are the kinds that a control plane decides, MigratorKinds those that a
// migrator decides.
var (
	ControlKinds  = []abi.Kind{abi.Partition, abi.Guard}
	MigratorKinds = []abi.Kind{abi.Refine, abi.Quote, abi.Select, abi.Outlier, abi.Place}
)

// NativePolicies returns the policies of this fleet's preset that decide where no
// module does: those of the control plane, and those of a replica's market m.
func (f *Fleet) NativePolicies(m market.Config) slothost.Native {
	n := slothost.Native{
		Partitioner: partition.Exact{Slack: partition.DefaultSlack}, Guard: allowAll{}, Refiner: m.Refiner,
		Quoter: m.Machine.Quoter, Selector: m.Machine.Selector, Detector: m.Detector, Placer: m.Placer,
	}
	if f.Preset == config.PresetPaper {
		n.Partitioner = partition.TwoPhase{Objective: partition.Snapshot}
	}
	if n.Refiner == nil {
		n.Refiner = partition.WeightedRefiner{} // modules are compared with it; no boundary moves
	}
	if n.Quoter == nil {
		n.Quoter = bidask.Backlog{}
	}
	if n.Selector == nil {
		n.Selector = bidask.LeastLoad{}
	}
	if n.Detector == nil {
		n.Detector = bidask.Detector{Percent: bidask.DefaultPercent}
	}
	if n.Placer == nil {
		n.Placer = f.placer()
	}
	return n
}

// allowAll is the guard of a fleet without a guard module: the Rego rules and the
// built-in invariants apply in any case.
type allowAll struct{}

// Guard implements slothost.Guard.
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
	partitioner, bids := "partition-exact", "bid-least-load"
	if f.Preset == config.PresetPaper {
		partitioner, bids = "partition-paper", "bid-paper"
	}
	all := []BuiltinModule{
		{Name: partitioner, Kinds: []abi.Kind{abi.Partition}},
		{Name: bids, Kinds: []abi.Kind{abi.Quote, abi.Select}},
		{Name: "refine-paper", Kinds: []abi.Kind{abi.Refine}},
		{Name: "outlier", Kinds: []abi.Kind{abi.Outlier}},
	}
	placer := "place-cheapest"
	if f.Preset == config.PresetPaper {
		placer = "place-paper"
	}
	all = append(all, BuiltinModule{Name: placer, Kinds: []abi.Kind{abi.Place}})
	return slices.DeleteFunc(all, func(b BuiltinModule) bool { return f.UnusedReason(b.Kinds[0]) != "" })
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
	case k == abi.Outlier && f.Preset != config.PresetPaper:
		return "requests of this fleet move where they cost less: only preset paper moves them by load"
	case k == abi.Refine && !f.Refines():
		return "boundaries of this fleet move only with plans: only preset paper moves them in between"
	}
	return ""
}

// Caveat returns when the policies of a kind that this fleet calls decide nothing; "" where they always decide.
func (f *Fleet) Caveat(k abi.Kind) string {
	if k == abi.Partition && f.Planner.Adopt == config.AdoptIfNeeded {
		return `planner.adopt is "if-needed": its stages come into force only while one stage is over its limits`
	}
	return ""
}

// StateDir returns the directory of the fleet's state; "" for none, for etcd and for Kubernetes.
func (f *Fleet) StateDir() string {
	if f.RemoteState() {
		return ""
	}
	return f.resolvePath(f.State)
}
