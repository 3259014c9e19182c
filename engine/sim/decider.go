package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/place"
)

// knowledge is what a decider knows of the replicas and requests.
type knowledge int

const (
	// exactStates: the present states, and of outputs what is expected of such requests.
	exactStates knowledge = iota + 1
	// exactOutputs: the present states, and how many tokens each request will generate.
	exactOutputs
)

// decider sends each request of a fleet to the replica where it costs least (place.View).
type decider struct {
	c       *cascade
	knows   knowledge
	views   []*place.View // of the replicas
	pricing place.Pricing
	outputs place.Outputs
	// Scratch memory.
	state  place.State
	queued []*request
}

func newDecider(c *cascade, knows knowledge) *decider {
	d := &decider{c: c, knows: knows}
	cfg := &c.sim.cfg
	for range c.sim.replicas {
		d.views = append(d.views, place.NewView(engineOf(cfg), 0))
	}
	return d
}

// engineOf returns what placement knows of the engines of a simulation.
func engineOf(c *Config) place.Engine {
	skew := 0.0
	if c.Attention == cost.Stress {
		skew = c.Stress
	}
	prices := c.Profile.Cost()
	prices.Kappa = 0 // as for cost.Attention
	return place.Engine{
		Cost: prices, Skew: skew, Batch: c.MaxBatch,
		Chunk: policies.Tokens(c.MaxBatchedTokens), KV: c.KVTokens,
	}
}

// route returns the replica where a request starts, −1 for none.
func (d *decider) route(q *request) int {
	now := d.c.now()
	cached, holder := d.findPrefixes(q)
	best, least := -1, int64(0)
	for i, r := range d.c.sim.replicas {
		if r.failed || d.c.fronts[i].draining || !r.fits(q.Request) {
			continue
		}
		d.report(r)
		w := d.describe(q, i, cached, holder)
		price := d.views[i].Price(now, w, &d.pricing)
		if best >= 0 && (price > least || price == least && d.views[i].Held(now) >= d.views[best].Held(now)) {
			continue
		}
		best, least = i, price
	}
	return best
}

// findPrefixes returns how much of a prompt each replica has cached, and the replica that has most of it; −1 if
// none has any.
func (d *decider) findPrefixes(q *request) (cached []policies.Tokens, holder int) {
	if len(q.Prefix) == 0 {
		return nil, -1
	}
	holder = -1
	for i, r := range d.c.sim.replicas {
		n := r.cachedTokens(q.Request)
		cached = append(cached, n)
		if n > 0 && !r.failed && (holder < 0 || n > cached[holder]) {
			holder = i
		}
	}
	return cached, holder
}

// describe describes a request at a replica, which copies the beginning of its prompt if that pays.
func (d *decider) describe(q *request, at int, cached []policies.Tokens, holder int) place.Waiting {
	w := place.Waiting{Length: q.Input}
	if holder >= 0 {
		w.Cached = cached[at]
		if more, takes := d.copies(at, holder, cached); more > 0 {
			w.Cached, w.Copied = w.Cached+more, more
			w.Ready = d.c.now() + takes
		}
	}
	return w.Weigh(d.expect(q, 0))
}

// copies returns how many tokens a replica would copy from the holder of a prefix, and for how long.
func (d *decider) copies(at, holder int, cached []policies.Tokens) (policies.Tokens, policies.Micros) {
	to, from := d.c.sim.replicas[at], d.c.sim.replicas[holder]
	if !d.c.pull || at == holder || to.receiving >= maxPulls || from.sending >= maxPulls {
		return 0, 0
	}
	profile := &d.c.sim.cfg.Profile
	share := float64(max(1, from.sending+1, to.receiving+1))
	decision := place.DecidePull(place.PullOffer{
		Own: cached[at], Held: cached[holder], TokenBytes: profile.KVBytesPerToken,
		Rate: links.Rate(profile.LinkRate / share), Cost: profile.Cost(),
	})
	if !decision.Pull {
		return 0, 0
	}
	return decision.Tokens, decision.Transfer
}

// expect returns how many tokens a request generates in all, as far as the decider knows.
func (d *decider) expect(q *request, generated policies.Tokens) policies.Tokens {
	if d.knows == exactOutputs {
		return q.Output
	}
	return d.outputs.Expect(q.Input, generated, 0)
}

// observeEnd learns from a request that was answered.
func (d *decider) observeEnd(q *request) { d.outputs.Observe(q.Input, policies.Tokens(q.tokens)) }

// report reports the present state of a replica: as of the end of its iteration, whose tokens are counted.
func (d *decider) report(r *replica) {
	d.state.Running, d.state.Waiting, d.queued = d.state.Running[:0], d.state.Waiting[:0], d.queued[:0]
	for _, q := range r.resident {
		if q.aborted || q.sequence.Ended() {
			continue
		}
		generated := policies.Tokens(q.sequence.Output())
		if left := q.sequence.Length() - q.sequence.Computed(); left > 1 || !q.sequence.Runs() {
			d.queued = append(d.queued, q)
			continue
		}
		expected, length := d.expect(q, generated), policies.Tokens(q.sequence.Length())
		d.state.Running = append(d.state.Running, place.Running{
			Count: 1, Length: length, Longest: length, Remaining: expected - generated, Weight: 1 / float64(expected),
		})
	}
	// Those that were begun come first, then those that wait, in the order of their arrival.
	slices.SortFunc(d.queued, func(a, b *request) int {
		return cmp.Or(cmp.Compare(b.sequence.Computed(), a.sequence.Computed()), cmp.Compare(a.index, b.index))
	})
	for _, q := range d.queued {
		d.state.Waiting = append(d.state.Waiting, d.describeQueued(q))
	}
	d.state.At, d.state.Used = d.c.now(), r.usedKV()
	if r.running {
		d.state.At = policies.Micros(r.endsAt / time.Microsecond)
	}
	d.state.Compact()
	d.views[r.index].Report(d.c.now(), &d.state)
}

// describeQueued describes a request whose prompt is not computed yet.
func (d *decider) describeQueued(q *request) place.Waiting {
	generated := policies.Tokens(q.sequence.Output())
	expected := d.expect(q, generated)
	computed := policies.Tokens(q.sequence.Computed())
	w := place.Waiting{
		Ready: q.arrived, Length: policies.Tokens(q.sequence.Length()), Cached: computed, Allocated: computed,
	}.Weigh(expected)
	w.Output -= generated
	if generated > 0 {
		w.FirstWeight = 0
	}
	if w.Cached == 0 {
		w.Cached = q.hit
	}
	return w
}
