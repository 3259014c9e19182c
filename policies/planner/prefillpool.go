package planner

import (
	"errors"
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// A split into prefill replicas and others is priced by what a workload costs if some of its replicas
// compute the long prompts and the others decode, beside what it costs if every replica does
// both.
//
// The unit is that of partition.Flow: the mean number of requests in the system, which by
// Little's law is their rate times the time that each of them spends there. A fleet without
// prefill replicas costs what its best stages cost (prompts slow the iterations that they
// share) plus the requests that wait for their first token. A split with k prefill replicas
// costs the best stages of the other replicas without the long prompts, plus the requests that
// wait for their first token at the prefill replicas or elsewhere, plus those whose KV moves.
//
// DividePrefill divides the prefill replicas among the prompts by length, so that short ones do not wait
// behind long ones, and a split is priced with that division.
//
// PricePrefill and DividePrefill are pure functions: equal workloads give equal results. They
// assume that prompts are computed first come, first served; that all prompts of a length
// bucket are as long as their mean; and that the replicas of a stage, or of one range of the
// prefill replicas, share one queue, which placement by the shortest queue approximates. A
// prompt whose range has a long queue may leave it (package place), so that the wait is priced as
// with these ranges or as in one queue of all prefill replicas, whichever is shorter.

// MinPrefillGain is the least share of the cost that a split must save to pay: less is within the
// model's error. Plans are adopted for the same gain.
const MinPrefillGain = 0.1

// maxPrefillOptions bounds the options of a Quote: each is a plan of its own, which takes a millisecond
// or two.
const maxPrefillOptions = 128

// PrefillOption is a fleet with so many prefill replicas.
type PrefillOption struct {
	Prefill int     // replicas
	Stages  int     // of the other replicas; 0 if infeasible
	Decode  float64 // cost of the stages: requests that generate, and migrations between stages
	Wait    float64 // requests that wait for their first token
	Move    float64 // requests whose KV moves from a prefill replica
	// Utilisation is the busy share of the prefill replicas; 0 without any.
	Utilisation float64
	// Cost is the sum; +Inf if the replicas cannot serve the workload so, and then the other costs say nothing.
	Cost float64
}

// PrefillQuote is the prices of all options for one workload.
type PrefillQuote struct {
	// Options has every number of prefill replicas from 0 to one less than the replicas, in
	// ascending order; of a fleet of more than 128 replicas, at most 128 numbers evenly apart.
	Options []PrefillOption
	Best    int // index of the cheapest option, of equal ones that with the fewest prefill replicas
	// Moved is the rate of the requests that would begin at a prefill replica, per second.
	Moved float64
}

// PrefillGain returns the share of the cost without prefill replicas that the best option saves, 0 to
// 1; 1 if without them the workload cannot be served.
func (q PrefillQuote) Gain() float64 {
	if q.Best == 0 {
		return 0
	}
	if math.IsInf(q.Options[0].Cost, 1) {
		return 1
	}
	return 1 - q.Options[q.Best].Cost/q.Options[0].Cost
}

// Pays reports whether the best option saves at least MinPrefillGain.
func (q PrefillQuote) Pays() bool { return q.Gain() >= MinPrefillGain }

// PricePrefill prices numbers of prefill replicas, each beside the stages that a partitioner gives the
// other replicas: that of the fleet, so that the costs are those of fleets that would run. The Flow
// must count all prompts, also those that prefill replicas compute now, and Replicas is the size of
// the whole fleet. Prompts of which less than place.MinUncached is not cached stay where they are
// decoded. The error is a *policies.Violation for an invalid workload, policies.ErrInfeasible if
// no option can serve it, and otherwise the partitioner's.
func PricePrefill(stages policies.Partitioner, w policies.Workload) (PrefillQuote, error) {
	if err := w.Validate(); err != nil {
		return PrefillQuote{}, err
	}
	long, q := longBuckets(w), PrefillQuote{}
	for b, moves := range long {
		if moves {
			q.Moved += w.Flow.Arrivals[b]
		}
	}
	step := (w.Replicas + maxPrefillOptions - 1) / maxPrefillOptions
	for k := 0; k < w.Replicas; k += step {
		o, err := pricePrefill(stages, w, long, k)
		if err != nil {
			return PrefillQuote{}, err
		}
		q.Options = append(q.Options, o)
		if o.Cost < q.Options[q.Best].Cost {
			q.Best = len(q.Options) - 1
		}
	}
	if math.IsInf(q.Options[q.Best].Cost, 1) {
		return q, policies.ErrInfeasible
	}
	return q, nil
}

// PrefillGain returns the share of the cost that k prefill replicas save, compared with none; below 0
// if they cost more. ok is false if either fleet cannot serve the workload, or if there is no
// request. Unlike Price it prices no other number.
func PrefillGain(stages policies.Partitioner, w policies.Workload, k int) (gain float64, ok bool) {
	if w.Validate() != nil || k < 1 || k >= w.Replicas {
		return 0, false
	}
	long := longBuckets(w)
	without, err := pricePrefill(stages, w, long, 0)
	if err != nil {
		return 0, false
	}
	with, err := pricePrefill(stages, w, long, k)
	gain = 1 - with.Cost/without.Cost
	return gain, err == nil && !math.IsInf(gain, 0) && !math.IsNaN(gain)
}

// longBuckets reports of which buckets the prompts would be computed by prefill replicas.
func longBuckets(w policies.Workload) []bool {
	long := make([]bool, len(w.Flow.Edges))
	for b, n := range w.Flow.Arrivals {
		long[b] = n > 0 && w.Flow.Prefill[b] >= n*float64(place.MinUncached)
	}
	return long
}

// pricePrefill prices k prefill replicas, which compute the prompts of the long buckets.
func pricePrefill(stages policies.Partitioner, w policies.Workload, long []bool, k int) (PrefillOption, error) {
	o := PrefillOption{Prefill: k, Cost: math.Inf(1)}
	var pool promptLoad
	link := 0.0 // seconds per second for which the prefill replicas' links are busy, all together
	if k > 0 {
		classes := promptClasses(w.Flow, w.Cost, func(b int) bool { return long[b] })
		staying := policies.NewFlow(w.Flow.Edges)
		copy(staying.Prefill, w.Flow.Prefill)
		copy(staying.Prefill2, w.Flow.Prefill2)
		for b, moves := range long {
			if !moves {
				continue
			}
			pool.add(w.Flow.Arrivals[b], promptSeconds(w.Flow, w.Cost, b))
			staying.Prefill[b], staying.Prefill2[b] = 0, 0
			o.Move += w.Flow.Arrivals[b] * (w.Transfer.Base + float64(w.Transfer.PerToken*meanInput(w, b)))
			link += float64(w.Flow.Arrivals[b] * float64(w.Transfer.PerToken*meanInput(w, b)))
		}
		w.Replicas -= k
		w.Flow.Prefill, w.Flow.Prefill2 = staying.Prefill, staying.Prefill2
		o.Utilisation = pool.work / float64(k)
		// The headroom of a stage, and the transfers that the prefill replicas can send.
		if room := float64(k) - float64(w.Limits.Pooling*math.Sqrt(pool.work)); pool.work >= room {
			return o, nil
		}
		if rate := w.Capacity.TransferRate; rate > 0 && pool.rate > rate*float64(k) || link > float64(k) {
			return o, nil
		}
		_, waiting := divideClasses(classes, k)
		o.Wait = waiting + pool.work
	}
	part, err := stages.Partition(w)
	if errors.Is(err, policies.ErrInfeasible) {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	o.Stages, o.Decode = len(part.Counts), part.Cost
	o.Wait += waitInStages(w, part)
	o.Cost = o.Decode + o.Wait + o.Move
	return o, nil
}

// waitInStages returns how many requests wait for their first token at the replicas of stages.
// Their prompts share iterations with the sequences that the replicas generate.
func waitInStages(w policies.Workload, part policies.Partition) (waiting float64) {
	b := 0
	for i, n := range part.Counts {
		var prompts promptLoad
		decoding := 0.0
		for ; b < len(w.Flow.Edges) && (i == len(part.Cuts) || w.Flow.Edges[b] < part.Cuts[i]); b++ {
			if seconds := promptSeconds(w.Flow, w.Cost, b); seconds > 0 { // else a prefill replica computes them
				prompts.add(w.Flow.Arrivals[b], seconds)
			}
			decoding += float64(w.Cost.D1*w.Flow.Tokens[b]) + float64(w.Cost.D4*w.Flow.Reads[b])
		}
		share := decoding / float64(n)
		waiting += prompts.rate * (prompts.wait(n, share) + prompts.mean()/(1-share))
	}
	return waiting
}

// promptSeconds returns the time to compute the mean prompt of a bucket, as far as it is not cached.
func promptSeconds(f policies.Flow, c policies.Cost, b int) float64 {
	n := f.Arrivals[b]
	if n <= 0 {
		return 0
	}
	return float64(c.D2*f.Prefill[b]/n) + float64(c.D3*f.Prefill2[b]/n)
}

// meanInput returns the prompt length of a bucket: its middle, or of the last one its start.
func meanInput(w policies.Workload, b int) float64 {
	low := float64(w.Flow.Edges[b])
	if b+1 < len(w.Flow.Edges) {
		return (low + float64(w.Flow.Edges[b+1])) / 2
	}
	return low
}

// promptLoad sums up the prompts of several buckets. They arrive at random (Poisson) and are
// computed in the order of their arrival.
type promptLoad struct {
	rate    float64 // per second
	work    float64 // sum of rate · seconds: the mean number of busy replicas
	squares float64 // sum of rate · seconds²
}

func (l *promptLoad) add(rate, seconds float64) {
	l.rate += rate
	l.work += float64(rate * seconds)
	l.squares += float64(rate*seconds) * seconds
}

func (l promptLoad) plus(o promptLoad) promptLoad {
	return promptLoad{l.rate + o.rate, l.work + o.work, l.squares + o.squares}
}

// mean returns the mean time to compute a prompt.
func (l promptLoad) mean() float64 {
	if l.rate <= 0 {
		return 0
	}
	return l.work / l.rate
}

// wait returns the mean time that a prompt queues at k replicas which spend a share of their time
// on other work; +Inf if they cannot keep up. It is Sakasegawa's approximation of a queue with k
// servers, exact for one.
func (l promptLoad) wait(k int, share float64) float64 {
	free := 1 - share
	if l.work <= 0 {
		return 0
	}
	busy := l.work / float64(k) / free
	if free <= 0 || busy >= 1 {
		return math.Inf(1)
	}
	mean := l.mean() / free
	scv := l.squares*l.rate/float64(l.work*l.work) - 1 // squared coefficient of variation of the prompts' times
	n := float64(k)
	return (1 + max(scv, 0)) / 2 * math.Pow(busy, math.Sqrt(2*(n+1))-1) / float64(n*(1-busy)) * mean
}
