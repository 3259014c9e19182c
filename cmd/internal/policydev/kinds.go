package policydev

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	wasm "github.com/cascadeinfer/cascade/wasm/slothost"
)

// builtins are the built-in policies. The first of a kind is the fleet's default.
var builtins = []builtin{
	{"partition-exact", wasm.Native{Partitioner: partition.Exact{Slack: partition.DefaultSlack}}},
	{"partition-recursion", wasm.Native{Partitioner: partition.Recursion{}}},
	{"partition-two-phase", wasm.Native{Partitioner: partition.TwoPhase{}}},
	{"partition-paper", wasm.Native{Partitioner: partition.TwoPhase{Objective: partition.Snapshot}}},
	{"refine-weighted", wasm.Native{Refiner: partition.WeightedRefiner{}}},
	{"refine-paper", wasm.Native{Refiner: partition.PaperRefiner{}}},
	{"bid-least-load", wasm.Native{Quoter: bidask.Backlog{}, Selector: bidask.LeastLoad{}}},
	{"bid-paper", wasm.Native{Quoter: bidask.Backlog{}, Selector: bidask.Paper{}}},
	{"outlier", wasm.Native{Detector: bidask.Detector{}}},
	{"place-cheapest", wasm.Native{Placer: place.Cheapest{}}},
	{"place-paper", wasm.Native{Placer: place.Policy{}}},
}

// newKinds maps the kinds of policies that New can write to the kinds of calls that they
// decide, each with its guest package.
var newKinds = map[string]map[string]string{
	"refine":    {"refine": "refine"},
	"bid":       {"bid-quote": "bidquote", "bid-select": "bidselect"},
	"outlier":   {"outlier": "outlier"},
	"place":     {"place": "place"},
	"partition": {"partition": "partition"},
	"guard":     {"guard": "guard"},
}

// describeDecision describes the decision of a record in a few words.
func describeDecision(r *host.Record) string {
	if r.Cause != 0 {
		return r.Cause.String()
	}
	if r.Kind >= abi.NumKinds || kinds[r.Kind] == nil {
		return "no decision"
	}
	return kinds[r.Kind].describe(r)
}

// kinds is the table of the kinds that decide. Configure has no entry.
var kinds = [abi.NumKinds]interface {
	// random returns a call with the given numbers of bids or replicas, and of sequences
	// on either side.
	random(r random, several, many int) call
	// describe describes the answer in a record.
	describe(r *host.Record) string
}{
	abi.Select: &kind[[]policies.Bid, int]{
		&abi.SelectCodec,
		func(r random, several, _ int) []policies.Bid { return r.bids(several) },
		func(bids []policies.Bid, i int) string {
			if i < 0 {
				return "none of the bids"
			}
			return fmt.Sprintf("%s (load %d, start %d µs)", quote(string(bids[i].From)), bids[i].Load, bids[i].Start)
		},
	},
	abi.Quote: &kind[abi.QuoteArgs, abi.QuoteAnswer]{
		&abi.QuoteCodec,
		func(r random, _, _ int) abi.QuoteArgs { return r.quoteArgs() },
		func(_ abi.QuoteArgs, a abi.QuoteAnswer) string {
			if !a.OK {
				return "no bid"
			}
			return fmt.Sprintf("load %d, start %d µs", a.Bid.Load, a.Bid.Start)
		},
	},
	abi.Outlier: &kind[abi.Loads, policies.Tokens]{
		&abi.OutlierCodec,
		func(r random, _, _ int) abi.Loads { return abi.Loads{Own: r.tokens(2e6), Mean: r.tokens(1e6)} },
		func(_ abi.Loads, excess policies.Tokens) string { return fmt.Sprintf("offer %d tokens", excess) },
	},
	abi.Place: &kind[policies.Arrival, policies.ReplicaID]{
		&abi.PlaceCodec,
		func(r random, several, _ int) policies.Arrival { return r.arrival(several) },
		func(_ policies.Arrival, id policies.ReplicaID) string {
			if id == "" {
				return "stay"
			}
			return "forward to " + quote(string(id))
		},
	},
	abi.Refine: &kind[policies.BoundaryView, policies.Tokens]{
		&abi.RefineCodec,
		func(r random, _, many int) policies.BoundaryView { return r.border(many) },
		func(b policies.BoundaryView, at policies.Tokens) string {
			return fmt.Sprintf("%d (is %d)", at, b.Boundary)
		},
	},
	abi.Partition: &kind[policies.Workload, abi.PartitionAnswer]{
		&abi.PartitionCodec,
		func(r random, _, _ int) policies.Workload { return r.workload() },
		func(_ policies.Workload, a abi.PartitionAnswer) string {
			if a.Err != nil {
				return "infeasible"
			}
			var stages []string
			for i, n := range a.Partition.Counts {
				end := "∞"
				if i < len(a.Partition.Cuts) {
					end = fmt.Sprint(int64(a.Partition.Cuts[i]))
				}
				stages = append(stages, fmt.Sprintf("%d to %s", n, end))
			}
			return fmt.Sprintf("%s, cost %.4g", strings.Join(stages, ", "), a.Partition.Cost)
		},
	},
	abi.Guard: &kind[abi.Change, abi.GuardAnswer]{
		&abi.GuardCodec,
		func(r random, _, _ int) abi.Change { return r.change() },
		func(_ abi.Change, a abi.GuardAnswer) string {
			if !a.Denied {
				return "allowed"
			}
			where := "the plan"
			if a.Denial.Stage >= 0 {
				where = fmt.Sprintf("stage %d", a.Denial.Stage)
			}
			return fmt.Sprintf("denied by rule %d for %s: %s", a.Denial.Code, where, quote(a.Denial.Detail))
		},
	},
}

// kind implements an entry of kinds.
type kind[Q, A any] struct {
	*abi.Codec[Q, A]
	arguments func(r random, several, many int) Q
	text      func(Q, A) string
}

func (k *kind[Q, A]) random(r random, several, many int) call {
	return callOf[Q, A]{k.Codec, k.arguments(r, several, many)}
}

func (k *kind[Q, A]) describe(r *host.Record) string {
	q, a, err := host.Decode(r, k.Codec)
	if err != nil {
		return err.Error()
	}
	return k.text(q, a)
}

// quote makes text from a module safe to print, and leaves plain text alone.
func quote(s string) string {
	q := fmt.Sprintf("%q", s)
	if q == `"`+s+`"` && s != "" {
		return s
	}
	return q
}
