package policydev

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/outlier"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/refine"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/policy"
)

// marketPolicies combines the two policies for bids.
type marketPolicies struct {
	policies.Quoter
	policies.Selector
}

// builtin is a built-in policy. The first of a kind is the fleet's default.
type builtin struct {
	name   string
	kinds  []abi.Kind
	policy any // implements interfaces of package policies
}

func builtins() []builtin {
	return []builtin{
		{"partition-exact", []abi.Kind{abi.Partition}, partition.Exact{}},
		{"partition-recursion", []abi.Kind{abi.Partition}, partition.Recursion{}},
		{"partition-two-phase", []abi.Kind{abi.Partition}, partition.TwoPhase{}},
		{"partition-paper", []abi.Kind{abi.Partition}, partition.TwoPhase{Objective: partition.Snapshot}},
		{"refine-weighted", []abi.Kind{abi.Refine}, refine.Weighted{}},
		{"refine-paper", []abi.Kind{abi.Refine}, refine.Paper{}},
		{"bid-least-load", []abi.Kind{abi.Quote, abi.Select}, marketPolicies{bidask.Backlog{}, bidask.LeastLoad{}}},
		{"bid-paper", []abi.Kind{abi.Quote, abi.Select}, marketPolicies{bidask.Backlog{}, bidask.Paper{}}},
		{"outlier", []abi.Kind{abi.Outlier}, outlier.Detector{}},
		{"place", []abi.Kind{abi.Place}, place.Policy{}},
	}
}

// Builtins returns the names of the built-in policies.
func Builtins() []string {
	var names []string
	for _, b := range builtins() {
		names = append(names, b.name)
	}
	return names
}

// findBuiltin returns the built-in policy that decides one of the kinds and has the given
// name. The name may omit the kind if the rest is unique.
func findBuiltin(name string, kinds []abi.Kind) (builtin, error) {
	var found []builtin
	for _, b := range builtins() {
		if !slices.ContainsFunc(b.kinds, func(k abi.Kind) bool { return slices.Contains(kinds, k) }) {
			continue
		}
		if b.name == name {
			return b, nil
		}
		if strings.HasSuffix(b.name, "-"+name) {
			found = append(found, b)
		}
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return builtin{}, fmt.Errorf("no built-in policy %q decides %s: use one of %s", name, joinKinds(kinds), strings.Join(Builtins(), ", "))
}

// defaultBuiltin returns the fleet's default policy of a kind, if there is one.
func defaultBuiltin(k abi.Kind) (builtin, bool) {
	for _, b := range builtins() {
		if slices.Contains(b.kinds, k) {
			return b, true
		}
	}
	return builtin{}, false
}

// A Decider answers frames.
type Decider interface {
	// Replay makes the call of a frame and records it. The error is a *host.Fault,
	// whose cause is also in the record.
	Replay(frame []byte, r *host.Record) error
}

// native answers frames with a built-in policy, as a module with that policy would. It
// consumes no fuel.
type native struct{ builtin }

// Replay implements Decider.
func (n native) Replay(frame []byte, r *host.Record) error { return n.native().Answer(frame, r) }

// native returns the policies of its kinds.
func (b builtin) native() (n wasm.Native) {
	for _, k := range b.kinds {
		switch k {
		case abi.Partition:
			n.Partitioner = b.policy.(policies.Partitioner)
		case abi.Refine:
			n.Refiner = b.policy.(policies.Refiner)
		case abi.Quote:
			n.Quoter = b.policy.(policies.Quoter)
		case abi.Select:
			n.Selector = b.policy.(policies.Selector)
		case abi.Outlier:
			n.Detector = b.policy.(policies.Detector)
		case abi.Place:
			n.Placer = b.policy.(policies.Placer)
		}
	}
	return n
}

// kindOf returns the kind of a frame, abi.NumKinds if it is not a frame.
func kindOf(frame []byte) abi.Kind { return calllog.KindOf(frame) }

// joinKinds joins the names of kinds.
func joinKinds(kinds []abi.Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}
