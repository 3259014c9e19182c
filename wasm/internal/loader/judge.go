package loader

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/calllog"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/planguard"
	"github.com/cascadeinfer/cascade/wasm/policy"
)

// judge compares two answers to the same call, by the host's own cost functions and not
// by the claims of either policy.
type judge struct{ price planguard.Native } // nil when no native policy can price a partition

func newJudge(n policy.Native) judge {
	price, _ := n.Partitioner.(planguard.Native)
	return judge{price}
}

// count compares two answers and adds the result to the figures.
func (j judge) count(active, candidate *host.Record, f *lifecycle.Figures) {
	differ, worse := j.compare(active, candidate)
	f.Compared++
	if differ {
		f.Differ++
	}
	if worse {
		f.Worse++
	}
}

// compare reports whether a candidate decided otherwise than the active policy, and
// whether it decided worse. Both records are of the same frame and have answers.
//
// Worse are:
//   - a winner whose load and start are both no better than those of the active
//     policy's winner and one of them worse, and no winner where the active policy has
//     one;
//   - a partition that costs more than the active policy's by more than the slack of
//     the planner's gate, and none where the active policy has one;
//   - a boundary that serves no better than the current one and, by more than the
//     margin of the refiner's gate, worse than the active policy's: one that stays
//     where the active policy gains.
//
// The answers of the other kinds cannot be rated on their own.
//
// The margins are those of the gates that accept proposals: a policy may decide
// freely within them. The native model rates the native proposal best, so a smaller
// margin would let no other policy pass; and a refiner that takes smaller steps
// makes the rest of the way in later periods, if it moves at all.
func (j judge) compare(active, candidate *host.Record) (differ, worse bool) {
	switch active.Kind {
	case abi.Select:
		return j.winners(active, candidate)
	case abi.Partition:
		return j.partitions(active, candidate)
	case abi.Refine:
		b, at, to, ok := decode(&abi.RefineCodec, active, candidate)
		if !ok {
			return true, false
		}
		// Staying is no gain. The comparison is negated so that a NaN counts as worse.
		q := planguard.Quality(b, to)
		gains := q < planguard.Quality(b, b.Boundary)
		return at != to, at != to && !gains && !(q <= planguard.Quality(b, at)*(1+planguard.DefaultWorse))
	case abi.Place: // the value is an index
		return active.Result != candidate.Result, false
	}
	// The value is the output's length; the bytes behind the output are undefined.
	return active.Result != candidate.Result || !slices.Equal(calllog.Output(active), calllog.Output(candidate)), false
}

// decode returns the arguments and the two answers of a call; ok is false if one of them
// is invalid.
func decode[Q, A any](k *abi.Codec[Q, A], active, candidate *host.Record) (q Q, was, is A, ok bool) {
	q, was, err := host.Decode(active, k)
	_, is, err2 := host.Decode(candidate, k)
	return q, was, is, err == nil && err2 == nil
}

func (j judge) winners(active, candidate *host.Record) (differ, worse bool) {
	bids, a, c, ok := decode(&abi.SelectCodec, active, candidate)
	switch {
	case !ok || a < 0 && c >= 0:
		return true, false
	case a == c:
		return false, false
	case c < 0:
		return true, true
	}
	was, is := bids[a], bids[c]
	return true, is.Load >= was.Load && is.Start >= was.Start && (is.Load > was.Load || is.Start > was.Start)
}

func (j judge) partitions(active, candidate *host.Record) (differ, worse bool) {
	w, a, c, ok := decode(&abi.PartitionCodec, active, candidate)
	was, is := a.Partition, c.Partition
	switch {
	case !ok:
		return true, false
	case a.Err != nil || c.Err != nil:
		// Either both found none, or one did; it is worse only if the candidate found none.
		return a.Err != c.Err, a.Err == nil
	case slices.Equal(was.Cuts, is.Cuts) && slices.Equal(was.Counts, is.Counts):
		return false, false
	}
	return true, j.cost(w, is) > j.cost(w, was)*(1+planguard.DefaultSlack)
}

// cost returns the cost that the native model predicts for a partition: infinite if it
// breaks a limit, always 0 without a model.
func (j judge) cost(w policies.Workload, p policies.Partition) float64 {
	if j.price == nil {
		return 0
	}
	priced, err := j.price.Price(w, p.Cuts, p.Counts)
	if err != nil {
		return math.Inf(1)
	}
	return priced.Cost
}
