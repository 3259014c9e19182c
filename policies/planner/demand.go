package planner

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// maxGrowth bounds how much more than the measured flow one step asks for: queues are reported by the
// replicas, and an engine that has stopped has a queue, too.
const maxGrowth = 4

// Demand returns the replicas that growth times the workload's flow needs, summed over the stages, if it may
// use the given share of what they can serve within the limits. Limit is that of the stage that needs most;
// Work excludes the headroom. The errors are those of partition.Objective.Least.
//
// The share divides the flow, and does not restrict the replicas: a batch that is limited by memory grows
// faster than the flow, so three quarters of the memory are far more than three quarters of the flow.
func Demand(w policies.Workload, growth, share float64) (partition.Need, error) {
	w.Replicas = 1
	_, needs, err := partition.Flow.Least(ScaleFlow(w, growth/share))
	if err != nil {
		return partition.Need{}, err
	}
	total, most := partition.Need{Limit: needs[0].Limit}, 0
	for _, n := range needs {
		total.Replicas += n.Replicas
		total.Work += float64(n.Work * share)
		if n.Replicas > most {
			most, total.Limit = n.Replicas, n.Limit
		}
	}
	return total, nil
}

// ScaleFlow returns the workload with factor times the flow.
func ScaleFlow(w policies.Workload, factor float64) policies.Workload {
	flow := policies.NewFlow(w.Flow.Edges)
	flow.Seen = w.Flow.Seen
	from := w.Flow.Columns()
	for i, column := range flow.Columns() {
		for b := range column {
			column[b] = float64(factor * from[i][b])
		}
	}
	w.Flow = flow
	return w
}

// backlog measures how much more arrives than is served, by what waits, runs and is refused. It forgets as
// the flow counters do, so that the two add up: for a number z of requests in the system and refused so far,
// the exponentially weighted mean of z' is (z − mean of z)/τ.
type backlog struct {
	known   bool
	at      policies.Micros
	mean    float64 // of z
	refused uint64  // as of the last step
	total   float64 // refused since the first step
	// served and tokens are the means of the rates of requests and of their tokens. Their quotient is the output of a
	// mean request. Quiet times count little in it: there, a rate of requests may be next to nothing while a
	// request that is not counted yet has all the tokens.
	served, tokens float64
}

const (
	// outputMemory is how much longer the mean output is remembered than the flow: requests are counted when they
	// end, long after their first tokens if they are long.
	outputMemory = 10
	// maxOutput bounds the tokens of a mean request: more than any model generates for one.
	maxOutput = 1 << 20
)

// output returns the tokens of a mean request; 0 while unknown.
func (q *backlog) output() float64 {
	if q.served == 0 {
		return 0
	}
	return min(q.tokens/q.served, maxOutput)
}

// step returns the demand over the flow: above 1 while requests queue up or are refused, below 1 while a
// backlog is worked off; 1 at the first step.
func (q *backlog) step(now, memory policies.Micros, in ScaleSample) float64 {
	served, tokens := sumOf(in.Workload.Flow.Arrivals), sumOf(in.Workload.Flow.Tokens)
	if in.Refused > q.refused {
		q.total += float64(in.Refused - q.refused)
	}
	q.refused = in.Refused // lower: a replica has left
	if !q.known {
		*q = backlog{known: true, at: now, refused: in.Refused}
		q.mean = q.requests(in)
		return 1
	}
	elapsed := max(0, now-q.at)
	passed := float64(elapsed) / float64(memory)
	q.at = now
	old := q.requests(in) - q.mean
	left := float64(math.Exp(-passed) * old)
	q.mean = q.requests(in) - left
	share := 1 - math.Exp(-passed/outputMemory)
	q.served += float64(share * (served - q.served))
	q.tokens += float64(share * (tokens - q.tokens))
	if !(tokens > 0) {
		return 1
	}
	// The mean of before and after, because z has changed during the step and not at its end.
	// The average spans a memory; after a longer step it spans that.
	more := (old + left) / 2 / (float64(max(memory, elapsed/2)) / float64(policies.Second))
	return min(max(1+float64(more*q.output())/tokens, 0), maxGrowth)
}

// requests returns z: a request that runs has half of its work left, on average.
func (q *backlog) requests(in ScaleSample) float64 {
	return q.total + float64(in.Waiting) + float64(in.Running)/2
}

func sumOf(column []float64) (total float64) {
	for _, x := range column {
		total += x
	}
	return total
}

// needWindow is the most that was needed lately.
type needWindow struct {
	started bool            // there was a sample, ever
	since   policies.Micros // the first sample without a gap
	list    []needed        // ascending times, descending numbers: the candidates for the maximum
}

type needed struct {
	at       policies.Micros
	replicas int
}

// never reports whether there was no sample yet.
func (w *needWindow) never() bool { return !w.started }

// add adds a sample and returns the maximum over the last length. full reports whether the samples span it.
// left is the time until the maximum may fall.
func (w *needWindow) add(now, length policies.Micros, replicas int) (most int, full bool, left policies.Micros) {
	if len(w.list) == 0 {
		w.started, w.since = true, now
	}
	for n := len(w.list); n > 0 && w.list[n-1].replicas <= replicas; n-- {
		w.list = w.list[:n-1]
	}
	w.list = append(w.list, needed{now, replicas})
	for w.list[0].at <= now-length && len(w.list) > 1 {
		w.list = w.list[1:]
	}
	full = now-w.since >= length
	left = max(0, w.since+length-now)
	if first := w.list[0]; first.replicas > replicas {
		left = max(left, first.at+length-now)
	}
	return w.list[0].replicas, full, left
}
