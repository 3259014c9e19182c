package place

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// FirstTokenWeight is what a second costs by which a first token comes later. That a request ends a second later
// costs 1 divided by the tokens that it generates: its normalised latency.
const FirstTokenWeight = 0.05

// Weigh returns a request that waits for its first token, of so many expected tokens of output, with its weights.
func (w Waiting) Weigh(output policies.Tokens) Waiting {
	w.Output = max(output, 1)
	w.Weight, w.FirstWeight = 1/float64(w.Output), FirstTokenWeight
	return w
}

// View is what a decider believes of one replica: the state that the replica reported last, moved on by a Model, and
// the requests that were sent to it since then.
//
// Time is an argument. A View is not safe for concurrent use; no call allocates once the replica has held as many
// requests before.
type View struct {
	engine Engine        // with the prices that were measured
	cost   policies.Cost // as given
	state  Model
	sent   []sentRequest // since the last report
	// reported says that there was a report.
	reported bool
}

// sentRequest is a request that was sent to a replica.
type sentRequest struct {
	at      policies.Micros
	request Waiting
}

// NewView returns the view of an idle replica.
func NewView(e Engine, now policies.Micros) *View {
	v := &View{engine: e, cost: e.Cost}
	v.state.Reset(&v.engine, now)
	return v
}

// Report sets the state of the replica, as of now. What was sent to it before now must be in the state.
// Report copies it.
func (v *View) Report(now policies.Micros, s *State) {
	if s.Iteration > 0 {
		given := Engine{Cost: v.cost, Skew: v.engine.Skew}
		v.engine.Cost = v.cost.Scale(min(max(s.Iteration/given.typical(), 1/MaxSlowdown), MaxSlowdown))
	}
	v.state.Reset(&v.engine, s.At)
	v.reported = true
	for i := range s.Running {
		v.state.AddRunning(s.Running[i])
	}
	for i := range s.Waiting {
		v.state.AddWaiting(s.Waiting[i])
	}
	if s.Used > 0 {
		v.state.SetUsed(s.Used)
	}
	kept := v.sent[:0]
	for _, one := range v.sent {
		if one.at >= now {
			kept = append(kept, one)
			v.state.AddWaiting(one.request)
		}
	}
	v.sent = kept
}

// maxReportAge is the greatest age of a report that comes: what was sent before is forgotten without one, too.
const maxReportAge = 10 * policies.Second

// Send records that a request was sent to the replica, by this decider or another one.
func (v *View) Send(at policies.Micros, w Waiting) {
	if len(v.sent) > 0 && v.sent[0].at < at-2*maxReportAge {
		v.sent = slices.DeleteFunc(v.sent, func(s sentRequest) bool { return s.at < at-maxReportAge })
	}
	v.sent = append(v.sent, sentRequest{at, w})
	v.state.Advance(at)
	v.state.AddWaiting(w)
}

// Held returns how many tokens the requests hold that run at the replica now.
func (v *View) Held(now policies.Micros) policies.Tokens {
	v.state.Advance(now)
	return v.state.Held()
}

// Pricing is the scratch memory of Price. The zero value is ready.
type Pricing struct{ with, before Model }

// maxPrice bounds prices, so that sums of two do not overflow.
const maxPrice = math.MaxInt64 / 4

// EvictedShare is how much of the price that a copy saves is lost again, because it evicts as many tokens from a full
// cache: what requests of these prefixes then cost more. A move copies what the other replica keeps, too, and what was
// just computed: all of it counts.
const EvictedShare = 0.15

// Price returns what a request costs at the replica: its own weighted latency, and by how much it delays what the
// replica has, times the replica's congestion. It is in nanoseconds per token, at least 0.
func (v *View) Price(now policies.Micros, w Waiting, p *Pricing) int64 {
	computed := w
	return v.price(now, &w, &computed, EvictedShare, p)
}

// PriceMove is Price for a request that generates tokens at another replica and is moved with its KV (Copied).
func (v *View) PriceMove(now policies.Micros, w Waiting, p *Pricing) int64 {
	computed := w
	computed.FirstWeight = FirstTokenWeight // a prompt pays for what is evicted
	return v.price(now, &w, &computed, 1, p)
}

// price is Price, where a request evicts this share of what it copies: it costs as much as computed, which is changed.
func (v *View) price(now policies.Micros, w, computed *Waiting, evicted float64, p *Pricing) int64 {
	v.state.Advance(now)
	p.before.CopyFrom(&v.state)
	before := p.before.Finish()
	price := v.finishWith(w, p) - before
	if w.Copied > 0 {
		computed.Cached, computed.Ready = w.Cached-w.Copied, 0
		price += evicted * max(0, v.finishWith(computed, p)-before-price)
	}
	// The iteration that the report is of has to end.
	price += max(0, v.state.now-seconds(now)) * (w.Weight + w.FirstWeight)
	switch price *= 1e9 * v.state.congestion(float64(w.Length)); {
	case math.IsNaN(price):
		return maxPrice // not 0, which would attract all requests
	case price < 0:
		return 0
	}
	return int64(min(price, maxPrice))
}

// finishWith returns what the ends of all requests cost that the replica has, and of one more.
func (v *View) finishWith(w *Waiting, p *Pricing) float64 {
	p.with.CopyFrom(&v.state)
	p.with.AddWaiting(*w)
	return p.with.Finish()
}
