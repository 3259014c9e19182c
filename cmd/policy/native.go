package policy

import (
	"encoding/binary"
	"errors"
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
	"github.com/cascadeinfer/cascade/wasm/host"
)

// market is both policies of the bids.
type market struct {
	policies.Quoter
	policies.Selector
}

// builtin is one of our own policies. The first of a kind is the fleet's default.
type builtin struct {
	name   string
	kinds  []abi.Kind
	policy any // of the interfaces of package policies
}

func builtins() []builtin {
	return []builtin{
		{"partition-exact", []abi.Kind{abi.Partition}, partition.Exact{}},
		{"partition-recursion", []abi.Kind{abi.Partition}, partition.Recursion{}},
		{"partition-two-phase", []abi.Kind{abi.Partition}, partition.TwoPhase{}},
		{"partition-paper", []abi.Kind{abi.Partition}, partition.TwoPhase{Model: partition.Snapshot}},
		{"refine-weighted", []abi.Kind{abi.Refine}, refine.Weighted{}},
		{"refine-paper", []abi.Kind{abi.Refine}, refine.Paper{}},
		{"bid-least-load", []abi.Kind{abi.Quote, abi.Select}, market{bidask.Backlog{}, bidask.LeastLoad{}}},
		{"bid-paper", []abi.Kind{abi.Quote, abi.Select}, market{bidask.Backlog{}, bidask.Paper{}}},
		{"outlier", []abi.Kind{abi.Outlier}, outlier.Detector{}},
		{"place", []abi.Kind{abi.Place}, place.Policy{}},
	}
}

// Builtins lists the names of our own policies.
func Builtins() []string {
	var names []string
	for _, b := range builtins() {
		names = append(names, b.name)
	}
	return names
}

// named finds one of our own policies that decides one of the kinds, by its name
// or, where that is clear, by what follows the kind in it.
func named(name string, kinds []abi.Kind) (builtin, error) {
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
	return builtin{}, fmt.Errorf("no built-in policy %q decides %s: use one of %s", name, list(kinds), strings.Join(Builtins(), ", "))
}

// usual is the fleet's own policy of a kind, if there is one.
func usual(k abi.Kind) (builtin, bool) {
	for _, b := range builtins() {
		if slices.Contains(b.kinds, k) {
			return b, true
		}
	}
	return builtin{}, false
}

// A Decider answers frames.
type Decider interface {
	// Replay makes the call of a frame and writes it down. The error is a
	// *host.Fault, which the record has, too.
	Replay(frame []byte, r *host.Record) error
}

// native answers frames by one of our own policies, as a module with that policy
// would. It burns no fuel.
type native struct{ builtin }

var errUndecided = errors.New("the built-in policy does not decide this kind")

// Replay implements Decider.
func (n native) Replay(frame []byte, r *host.Record) error {
	out := slices.Clone(frame)
	k := kindOf(frame)
	result, err := n.answer(k, out)
	*r = host.Record{Kind: k, Frame: append(r.Frame[:0], frame...), Result: result}
	if err == nil {
		if status, _ := abi.Unpack(result); status > abi.None {
			err = status
		}
	}
	if err != nil {
		r.Cause = host.Refused
		if errors.Is(err, errUndecided) {
			r.Cause = host.Unknown
		}
		return &host.Fault{Kind: k, Cause: r.Cause, Err: err}
	}
	r.Output = room(out)
	return nil
}

// answer decides a frame and leaves the output in it.
func (n native) answer(k abi.Kind, frame []byte) (uint64, error) {
	if !slices.Contains(n.kinds, k) {
		return 0, errUndecided
	}
	var s abi.Status
	switch k {
	case abi.Partition:
		var w policies.Workload
		if s = abi.GetPartition(frame, &w); s == abi.OK {
			p, err := n.policy.(policies.Partitioner).Partition(w)
			if err != nil && err != policies.ErrInfeasible {
				return 0, err
			}
			return abi.AnswerPartition(frame, p, err == nil), nil
		}
	case abi.Refine:
		var b policies.Border
		if b, _, s = abi.GetRefine(frame, nil); s == abi.OK {
			return abi.AnswerRefine(frame, n.policy.(policies.Refiner).Refine(b)), nil
		}
	case abi.Quote:
		var ask abi.Ask
		if ask, s = abi.GetQuote(frame); s == abi.OK {
			bid, bids := n.policy.(policies.Quoter).Quote(ask.Position, ask.Handover)
			return abi.AnswerQuote(frame, bid, bids), nil
		}
	case abi.Select:
		var bids []policies.Bid
		if bids, s = abi.GetSelect(frame, nil); s == abi.OK {
			return abi.AnswerSelect(n.policy.(policies.Selector).Select(bids)), nil
		}
	case abi.Outlier:
		var own, mean policies.Tokens
		if own, mean, s = abi.GetOutlier(frame); s == abi.OK {
			return abi.AnswerOutlier(frame, n.policy.(policies.Detector).Excess(own, mean)), nil
		}
	case abi.Place:
		var a policies.Arrival
		if a, s = abi.GetPlace(frame, nil); s == abi.OK {
			return abi.AnswerPlace(a, n.policy.(policies.Placer).Place(a)), nil
		}
	}
	return abi.Result(s, 0), nil
}

// kindOf is the kind of a frame, abi.Kinds for what is none.
func kindOf(frame []byte) abi.Kind {
	if len(frame) < abi.HeaderSize || binary.LittleEndian.Uint32(frame) != abi.Magic {
		return abi.Kinds
	}
	return min(abi.Kinds, abi.Kind(binary.LittleEndian.Uint16(frame[6:])))
}

// room is a frame's room for output.
func room(frame []byte) []byte {
	at, n := binary.LittleEndian.Uint32(frame[56:]), binary.LittleEndian.Uint32(frame[60:])
	if uint64(at)+uint64(n) > uint64(len(frame)) {
		return nil
	}
	return frame[at : at+n]
}

// list names kinds.
func list(kinds []abi.Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.String())
	}
	return strings.Join(names, ", ")
}
