package fleet

import "time"

// Demand is the arrival of requests at a model in the last seconds.
type Demand struct {
	// Rate is how many requests arrive per second. RefusedShare is the share of them that was answered
	// with 429, because no replica would have served them in time.
	Rate, RefusedShare float64
	// Queue is how long a request waits for its first token, by Little's law; 0 where nothing arrives.
	Queue time.Duration
	// Refused counts the requests that were refused since the start of this process.
	Refused uint64
	// Overloaded says that clients are refused, or that requests queue up and the replicas are too few.
	Overloaded bool
}

const (
	// demandWindow is the time over which demand is measured, and after which an overload is forgotten.
	demandWindow = 7 * time.Second
	demandSample = time.Second
	// A model is overloaded if this share of its requests is refused, and at least this number: a single
	// request that is too large for its deadline is no overload. A long queue is one, if replicas are missing.
	overloadShare   = 0.02
	overloadRefused = 3
	overloadQueue   = 10 * time.Second
)

// demandMeter measures the demand of one model. The zero value is ready for use.
type demandMeter struct {
	counts window[demandCount]
	demand Demand
}

// demandCount is the state of a model's counters at a moment. ended and refused count requests since the start
// of this process; held are the requests at the replicas by their last reports, however old, so that a replica which
// reports again does not seem to have got them then. waiting are those that wait at replicas whose last report counts.
type demandCount struct {
	ended, refused uint64
	held, waiting  int
}

// admittedSince returns how many requests the replicas have taken since an earlier moment. Front ends count
// a request when it ends.
func (c demandCount) admittedSince(first demandCount) float64 {
	return max(0, float64(c.ended-first.ended)+float64(c.held-first.held))
}

// step measures the demand. missing says that the model has fewer replicas than it needs.
func (d *demandMeter) step(now time.Time, c demandCount, missing bool) {
	first, seconds := d.counts.add(now, c, demandSample, demandWindow, func(before demandCount) bool {
		return c.ended < before.ended || c.refused < before.refused
	})
	admitted, refused := c.admittedSince(first), float64(c.refused-first.refused)
	d.demand = Demand{Refused: c.refused}
	if seconds < demandSample.Seconds() || admitted+refused == 0 {
		return
	}
	d.demand.Rate, d.demand.RefusedShare = (admitted+refused)/seconds, refused/(admitted+refused)
	if admitted > 0 {
		d.demand.Queue = time.Duration(float64(c.waiting) / admitted * seconds * float64(time.Second))
	}
	d.demand.Overloaded = refused >= overloadRefused && d.demand.RefusedShare >= overloadShare ||
		d.demand.Queue >= overloadQueue && missing
}

// measure steps the demand and the service of all models.
func (s *State) measure(now time.Time) {
	for _, m := range s.models {
		var c demandCount
		var total Service
		for _, r := range s.registry.All() {
			if r.Model == m.Name {
				ended, refused := r.Counted()
				c.ended, c.refused = c.ended+ended, c.refused+refused
				c.held += r.Report.Load.Waiting + r.Report.Load.Running
				if s.registry.Fresh(now, r) { // no request waits at a replica that has died
					c.waiting += r.Report.Load.Waiting
				}
				total.Service = total.Service.Plus(r.Service())
			}
		}
		total.Refused = c.refused
		m.demand.step(now, c, m.scaling.Needed > m.scaling.Present)
		m.service.step(now, total)
	}
}

// window keeps samples of a count over a span of time. The zero value is ready for use.
type window[T any] struct {
	samples []sample[T] // oldest first
}

type sample[T any] struct {
	at    time.Time
	count T
}

// add samples a count, at most once per interval, and returns the oldest sample of the span with its age in seconds.
// fallen reports whether the count is lower than before: then a replica has left with its counters, and the
// span begins anew.
func (w *window[T]) add(now time.Time, count T, interval, span time.Duration, fallen func(before T) bool) (first T, age float64) {
	n := len(w.samples)
	if n > 0 && fallen(w.samples[n-1].count) {
		w.samples, n = nil, 0
	}
	if n == 0 || now.Sub(w.samples[n-1].at) >= interval {
		w.samples = append(w.samples, sample[T]{now, count})
	}
	for len(w.samples) > 1 && now.Sub(w.samples[1].at) >= span {
		w.samples = w.samples[1:]
	}
	return w.samples[0].count, now.Sub(w.samples[0].at).Seconds()
}
