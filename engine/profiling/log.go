package profiling

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"

	"github.com/cascadeinfer/cascade/policies"
)

// Log is what was measured in one cell.
type Log struct {
	Cell
	Seconds  float64   `json:"seconds"`
	Failed   int       `json:"failed,omitempty"`  // requests without a complete answer, which are in no fit
	Failure  string    `json:"failure,omitempty"` // of the first one
	Running  int       `json:"running"`           // maximum number of requests that generated at once, by SetLoads
	Late     float64   `json:"late,omitempty"`    // share of the time in which the client should have run and did not
	Requests []Request `json:"requests"`
}

// Request is one request of a cell. Times are seconds since the cell began.
type Request struct {
	Slot   int             `json:"slot"`
	Prompt policies.Tokens `json:"prompt"`
	Cached policies.Tokens `json:"cached,omitempty"` // of the prompt, from the engine's prefix cache
	Output policies.Tokens `json:"output"`
	Start  float64         `json:"start"`
	First  float64         `json:"first,omitempty"` // first token; 0: none came
	End    float64         `json:"end"`             // of the answer
	// Steps are the microseconds from each event of the stream to the next, from the first token on. An engine
	// that generates one token per iteration sends one event per iteration.
	Steps []int64 `json:"steps_us,omitempty"`
	// Cut requests were in flight when the cell ended, or failed: they load the batch, and nothing is fitted
	// to them. Their End is that moment.
	Cut bool `json:"cut,omitempty"`
	// Load is computed by Log.SetLoads.
	Load Load `json:"load"`
}

// Load is the paper's F_1 … F_4: sums over the requests in flight, as averages over a request's life.
type Load struct {
	N     float64 `json:"n"`      // requests
	SumI  float64 `json:"sum_i"`  // prompt tokens
	SumI2 float64 `json:"sum_i2"` // squared prompt tokens
	SumL  float64 `json:"sum_l"`  // prompt tokens and tokens generated so far
}

// Normalised returns the request's end-to-end time per generated token, the paper's Q.
func (r Request) Normalised() float64 { return (r.End - r.Start) / float64(r.Output) }

// tokenTimes returns when each event of the stream came.
func (r Request) tokenTimes() []float64 {
	if r.First == 0 {
		return nil
	}
	times := make([]float64, 1, 1+len(r.Steps))
	times[0] = r.First
	sum := int64(0)
	for _, step := range r.Steps {
		sum += step
		times = append(times, r.First+float64(sum)*1e-6)
	}
	return times
}

// perEvent returns the tokens per event of the stream.
func (r Request) perEvent() float64 { return float64(r.Output) / float64(1+len(r.Steps)) }

// Queued reports whether the engine never ran the whole batch at once: some requests always waited, for memory
// or for a place in the batch. Such a cell is not fitted, since what it measures is its queue.
func (l Log) Queued() bool { return l.Running < l.Batch }

// maxLate is the share of a cell's time in which its client may wait for a CPU. Waits end early in the rest, so that
// some moment shows every request that the engine runs at once.
const maxLate = 0.25

// Starved reports whether the client waited for a CPU so long that it may have read whole answers at once. Then it
// cannot know whether they waited: no two of the answers seem to be generated at the same time.
func (l Log) Starved() bool { return l.Late > maxLate }

// Most steps of a cell whose tokens came in bursts are shorter than burstStep, in microseconds, and than
// burstShare of the mean step. No engine has such short iterations, but an emulated one may.
const (
	burstStep  = 100
	burstShare = 0.1
)

// Bursty reports whether most tokens of a cell came together with the one before: a proxy or a server collected
// them, or the client did not run. Their times say nothing about iterations.
func (l Log) Bursty() bool {
	var all []float64
	for _, r := range l.Requests {
		for _, step := range r.Steps {
			all = append(all, float64(step))
		}
	}
	if len(all) == 0 {
		return false
	}
	slices.Sort(all)
	median := stat.Quantile(0.5, stat.Empirical, all, nil)
	return median < burstStep && median < burstShare*stat.Mean(all, nil)
}

// steadyError is the standard error of the mean normalised latency, relative to it, at which a cell is steady.
const steadyError = 0.02

// Steady reports whether further requests would hardly change a cell's mean, given the normalised latencies so
// far in the order of their ends. The first batch does not count: it began with an empty engine.
func Steady(latencies []float64, batch int) bool {
	if len(latencies) < batch+max(8, 2*batch) {
		return false
	}
	mean, deviation := stat.MeanStdDev(latencies[batch:], nil)
	return deviation/math.Sqrt(float64(len(latencies)-batch)) <= steadyError*mean
}

// SetLoads computes Running, and the average loads of every request from the times of all.
func (l *Log) SetLoads() {
	t := newTimeline(*l)
	l.Running = 0
	for _, s := range t.states {
		l.Running = max(l.Running, s.decoding)
	}
	for i := range l.Requests {
		r := &l.Requests[i]
		if r.End > r.Start {
			r.Load = t.average(r.Start, r.End)
		}
	}
}

// timeline is the state of the batch over time, as a step function: states[i] holds from times[i] on.
type timeline struct {
	times  []float64
	states []state
	// integral[i] is that of the load up to times[i].
	integral []Load
}

// state is the batch at one moment.
type state struct {
	load     Load
	decoding int     // requests whose first token has come
	held     float64 // Σ length over those
	longest  float64 // of those
}

// change is one event of a request.
type change struct {
	at      float64
	request int
	kind    int // of changeEnd …; at one time, ends come before starts
}

const (
	changeEnd   = iota // of the answer
	changeLast         // last token
	changeToken        // another one
	changeStart
)

func newTimeline(l Log) timeline {
	var changes []change
	for i, r := range l.Requests {
		changes = append(changes, change{r.Start, i, changeStart}, change{max(r.End, r.Start), i, changeEnd})
		times := r.tokenTimes()
		for n, at := range times {
			kind := changeToken
			if n == len(times)-1 && !r.Cut && n > 0 {
				kind = changeLast
			}
			changes = append(changes, change{min(at, r.End), i, kind})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		switch {
		case a.at < b.at || a.at == b.at && a.kind < b.kind:
			return -1
		case a.at == b.at && a.kind == b.kind:
			return 0
		}
		return 1
	})
	var t timeline
	var active []int // requests in flight
	lengths, decoding := make([]float64, len(l.Requests)), make([]bool, len(l.Requests))
	for _, c := range changes {
		r := l.Requests[c.request]
		switch i := slices.Index(active, c.request); {
		case c.kind == changeStart && r.End > r.Start:
			active = append(active, c.request)
			lengths[c.request] = float64(r.Prompt)
		case i < 0: // the last token came with the end
		case c.kind == changeEnd:
			active = slices.Delete(active, i, i+1)
		default:
			lengths[c.request] += r.perEvent()
			decoding[c.request] = c.kind == changeToken
		}
		var now state
		for _, i := range active {
			length, prompt := lengths[i], float64(l.Requests[i].Prompt)
			now.load = now.load.plus(Load{1, prompt, prompt * prompt, length})
			if decoding[i] {
				now.decoding++
				now.held += length
				now.longest = max(now.longest, length)
			}
		}
		sum := Load{}
		if n := len(t.times) - 1; n >= 0 {
			sum = t.integral[n].plus(t.states[n].load.times(c.at - t.times[n]))
		}
		t.times, t.states, t.integral = append(t.times, c.at), append(t.states, now), append(t.integral, sum)
	}
	return t
}

func (a Load) times(f float64) Load { return Load{a.N * f, a.SumI * f, a.SumI2 * f, a.SumL * f} }

func (a Load) plus(b Load) Load {
	return Load{a.N + b.N, a.SumI + b.SumI, a.SumI2 + b.SumI2, a.SumL + b.SumL}
}

// index returns the index of the state at a time, −1 before the first.
func (t timeline) index(at float64) int {
	i, found := slices.BinarySearch(t.times, at)
	if !found {
		return i - 1
	}
	for i+1 < len(t.times) && t.times[i+1] == at {
		i++
	}
	return i
}

// at returns the state at a time.
func (t timeline) at(at float64) state {
	if i := t.index(at); i >= 0 {
		return t.states[i]
	}
	return state{}
}

// average returns the mean load over [from, to), which must not be empty.
func (t timeline) average(from, to float64) Load {
	integral := func(at float64) Load {
		i := t.index(at)
		if i < 0 {
			return Load{}
		}
		return t.integral[i].plus(t.states[i].load.times(at - t.times[i]))
	}
	return integral(to).plus(integral(from).times(-1)).times(1 / (to - from))
}
