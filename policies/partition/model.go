package partition

import (
	"math"

	"github.com/cascadeinfer/cascade/policies"
)

// Objective says how a stage is priced. The zero value is Flow.
type Objective int

const (
	// Flow minimises the requests in the system, Σ φ·T + Σ X·t, where T is a stage's
	// iteration time under its flow and t the delay of a migration (Little's law for both).
	// Long outputs weigh more.
	Flow Objective = iota
	// Snapshot minimises the paper's QoE of the in-flight requests (eq. 1)
	// in policies.Workload.Snapshot, by policies.Workload.QoE. Its unit is a delay per
	// output token, summed over requests. So a crossing is charged its delay over the
	// output length: by Little's law the requests that cross while one token takes.
	// Pooling and utilisation limits do not apply: the model has no load.
	Snapshot
)

// String names the model as a config file does.
func (m Objective) String() string {
	if m < Flow || m > Snapshot {
		return "unknown"
	}
	return [...]string{"flow", "snapshot"}[m]
}

// A stage is the price of serving one range of lengths, as a function of its replicas k:
// fixed + num/(k−u) for k ≥ kmin. Both terms are ≥ 0 and kmin > u, so the price is
// finite, convex and never increases with k. kmin is a whole number, or +Inf if no number
// of replicas can serve the range.
//
// fixed includes the transfer cost of the cut at the end of the range.
type stage struct {
	fixed, num, u, kmin float64
}

// price is the stage's cost with k replicas; +Inf below kmin.
func (s stage) price(k float64) float64 {
	if k < s.kmin {
		return math.Inf(1)
	}
	return s.fixed + s.num/(k-s.u)
}

// gain returns what one more replica than k saves. k must be ≥ kmin.
func (s stage) gain(k float64) float64 { return s.num / float64((k-s.u)*(k+1-s.u)) }

// countAtPrice returns the number of replicas in [kmin, limit] that the stage buys when
// a replica costs lambda ≥ 0: it buys while gain ≥ lambda. kmin must be ≤ limit.
func (s stage) countAtPrice(lambda, limit float64) float64 {
	k := s.kmin
	if s.num > 0 {
		// (k−u)(k+1−u) ≥ num/λ. If the quotient overflows to +Inf, the bound below limits it
		// before it becomes an integer.
		k = max(k, math.Ceil(s.u-0.5+math.Sqrt(0.25+s.num/lambda)))
	}
	return min(k, limit)
}

// load is the work of one range of lengths, from which a stage's price is computed.
type load struct {
	tokens  float64 // φ, or n of the snapshot
	held    float64 // ψ, or ΣL of the snapshot
	work    float64 // u: replicas' worth of work; in the snapshot Σ Dk·Fk of F1…F4, in seconds
	longest float64 // largest length that occurs
	squares float64 // Σ φ·L², L being each bucket's mean length
}

// pricing converts ranges of buckets to stages, for one workload and objective.
type pricing struct {
	model Objective
	w     policies.Workload
	cells []load    // per bucket
	cut   []float64 // c of a cut at the start of bucket b
}

// newPricing checks the workload and prepares its buckets.
func newPricing(m Objective, w policies.Workload) (*pricing, error) {
	if err := w.Validate(); err != nil {
		return nil, err
	}
	if m < Flow || m > Snapshot {
		return nil, &policies.Violation{Subject: "partition", Invariant: "the model must be flow or snapshot"}
	}
	if m == Snapshot && w.Snapshot == nil {
		return nil, &policies.Violation{Subject: "workload", Invariant: "2: planning on a snapshot needs one"}
	}
	n := len(w.Flow.Edges)
	p := &pricing{model: m, w: w, cells: make([]load, n), cut: make([]float64, n+1)}
	for b := range p.cells {
		p.cells[b] = p.cell(b)
	}
	weight := p.crossingWeight()
	for b := 1; b < n; b++ {
		delay := w.Transfer.Base + float64(w.Transfer.PerToken*float64(w.Flow.Edges[b]))
		p.cut[b] = float64(w.Flow.Crossings[b]*delay) * weight
	}
	return p, nil
}

// cell returns the load of one bucket.
func (p *pricing) cell(b int) load {
	c, f := p.w.Cost, p.w.Flow
	if p.model == Snapshot {
		x := p.w.Snapshot[b]
		m := p.w.QoE
		m.D0 = 0 // paid by every request, whatever its batch: base
		return load{tokens: x.N, held: x.SumL, work: m.OfRequest(x)}
	}
	l := load{tokens: f.Tokens[b], held: f.Reads[b]}
	l.work = float64(c.D1*f.Tokens[b]) + float64(c.D4*f.Reads[b]) + float64(c.D2*f.Prefill[b]) + float64(c.D3*f.Prefill2[b])
	if l.tokens > 0 {
		l.squares = float64(l.held / l.tokens * l.held)
		if b+1 < len(f.Edges) {
			l.longest = float64(f.Edges[b+1])
		} else {
			// The last bucket is open; assume lengths distributed evenly around its mean.
			low := float64(f.Edges[b])
			l.longest = max(low, 2*l.held/l.tokens-low)
		}
	}
	return l
}

// crossingWeight converts one second of delay of one crossing request a
// second into the objective's unit.
func (p *pricing) crossingWeight() float64 {
	if p.model != Snapshot {
		return 1
	}
	// The time of one token with the whole set on all replicas.
	work := 0.0
	for _, c := range p.cells {
		work += c.work
	}
	return p.w.QoE.D0 + work/float64(p.w.Replicas)
}

func (p *pricing) buckets() int { return len(p.cells) }

// stages returns the largest number of stages that a proposal may have.
func (p *pricing) stages() int {
	limit := policies.MaxStages
	if s := p.w.Limits.Stages; s > 0 {
		limit = min(limit, s)
	}
	return min(limit, p.w.Replicas, p.buckets())
}

// plus joins the load of a longer range to l.
func (l load) plus(o load) load {
	return load{
		tokens: l.tokens + o.tokens, held: l.held + o.held, work: l.work + o.work,
		longest: max(l.longest, o.longest), squares: l.squares + o.squares,
	}
}

// over sums the load of buckets [i, j).
func (p *pricing) over(i, j int) load {
	var l load
	for b := j - 1; b >= i; b-- {
		l = p.cells[b].plus(l)
	}
	return l
}

// batchSpread is how far above the mean the longest sequence of a batch is expected, in
// standard deviations of the lengths in flight. For n draws from any distribution it is
// at most (n−1)/√(2n−1) (Hartley and David 1954), which is 2 at n = 10. It bounds what
// the rare longest request of a wide range, which most batches do not contain, adds to
// every iteration.
const batchSpread = 2

// base returns the part of an iteration's time, as a request experiences it, that does
// not depend on the number of replicas: D0 and, under Flow, the request's own
// share and the penalty of unequal lengths in one batch. The own share is included because requests arrive at
// random: each finds the other requests of an average moment, plus itself. It is the
// waiting time in a nearly idle stage.
func (p *pricing) base(l load) float64 {
	c := p.w.Cost
	switch {
	case p.model == Snapshot:
		return p.w.QoE.D0
	case l.tokens == 0:
		return c.D0
	}
	mean := l.held / l.tokens
	own := c.D1 + float64(c.D4*mean)
	variance := l.squares/l.tokens - float64(mean*mean)
	if variance < 1e-9*mean*mean {
		variance = 0 // what rounding leaves of a single bucket
	}
	above := max(0, min(l.longest-mean, batchSpread*math.Sqrt(variance)))
	return c.D0 + own + float64(float64(c.Kappa*c.D4)*above)
}

// iteration predicts the iteration time of a load on k replicas, as a request experiences
// it: the seconds per output token, prefills included.
func (p *pricing) iteration(l load, k float64) float64 {
	base := p.base(l)
	if p.model == Snapshot {
		return base + l.work/k
	}
	if k <= l.work {
		return math.Inf(1)
	}
	return base + float64(base*l.work)/(k-l.work)
}

// maxPrice bounds the rates that are priced: sums of stages stay finite, even if k−u is no more
// than a rounding error.
const maxPrice = 1e280

// stage prices load l of the buckets [i, j). Under Flow T = base·k/(k−u), so
// φ·T = φ·base + φ·base·u/(k−u); in the snapshot k batches of S/k cost n·D0 + n·w/k.
func (p *pricing) stage(l load, i, j int) stage {
	base := p.base(l)
	s := stage{fixed: float64(l.tokens*base) + p.cut[j], num: float64(l.tokens * l.work), kmin: p.need(l, base, i, j)}
	if p.model != Snapshot {
		s.u, s.num = l.work, float64(s.num*base)
	}
	if sum := s.fixed + s.num; !(sum <= maxPrice) {
		return stage{kmin: math.Inf(1)} // NaN, too
	}
	return s
}

// need returns the smallest number of replicas within every limit for the buckets [i, j),
// or +Inf.
func (p *pricing) need(l load, base float64, i, j int) float64 {
	needs := p.needs(l, base, i, j)
	most := needs[0]
	for _, n := range needs[1:] {
		most = max(most, n)
	}
	return most
}

// needs returns the smallest number of replicas within each limit for the buckets [i, j), +Inf
// where no number is. A limit on what a replica holds is a limit on k−u, because by Little's law a
// replica holds φ·T/k = φ·base/(k−u) requests and ψ·base/(k−u) tokens.
func (p *pricing) needs(l load, base float64, i, j int) (needs [limits]float64) {
	w := p.w
	u, hold := l.work, base // tokens·hold/(k−u) is what a replica holds
	if p.model == Snapshot {
		u, hold = 0, 1
	}
	needs[LimitWork] = max(1, math.Floor(u)+1) // strictly above u
	needs[LimitBatch] = math.Ceil(u + float64(l.tokens*hold)/float64(w.Capacity.Batch))
	needs[LimitMemory] = math.Ceil(u + float64(l.held*hold)/float64(w.Capacity.KV))
	if i > 0 && i < j {
		needs[LimitLinks] = p.senders(i) // as many receive
	}
	if j < p.buckets() {
		needs[LimitLinks] = max(needs[LimitLinks], p.senders(j))
	}
	if limit := w.Limits.Iteration; limit > 0 {
		grows := u // what k divides, as a share of the limit's slack
		slack := 1 - base/limit
		if p.model == Snapshot {
			grows, slack = l.work, limit-base
		}
		switch {
		case slack < 0:
			needs[LimitIteration] = math.Inf(1)
		case grows > 0:
			needs[LimitIteration] = math.Ceil(grows / slack) // +Inf without slack
		}
	}
	if p.model != Snapshot {
		needs[LimitBursts] = math.Ceil(u + float64(w.Limits.Pooling*math.Sqrt(u)))
		if share := w.Limits.Utilisation; share > 0 {
			needs[LimitUtilisation] = math.Ceil(u / share)
		}
	}
	return needs
}

// senders returns how many replicas send or receive what crosses the start of bucket b: a link carries
// the KV of one token in Transfer.PerToken seconds, and a replica makes TransferRate migrations a second.
func (p *pricing) senders(b int) float64 {
	w, crossings := p.w, p.w.Flow.Crossings[b]
	busy := float64(crossings * float64(w.Transfer.PerToken*float64(w.Flow.Edges[b])))
	if rate := w.Capacity.TransferRate; rate > 0 {
		busy = max(busy, crossings/rate)
	}
	return math.Ceil(busy)
}

// propose describes the stages between the nodes (bucket indices, first 0 and
// last the number of buckets, growing strictly) as a proposal.
func (p *pricing) propose(nodes, counts []int) policies.Partition {
	out := p.predict(nodes, counts)
	for _, i := range nodes[1 : len(nodes)-1] {
		out.Cuts = append(out.Cuts, p.w.Flow.Edges[i])
	}
	return out
}

// predict prices the stages between the nodes, which may be empty. Cost is +Inf if one of
// them breaks a limit.
func (p *pricing) predict(nodes, counts []int) policies.Partition {
	out := policies.Partition{
		Counts:     append([]int(nil), counts...),
		Iterations: make([]float64, len(counts)),
	}
	for s, k := range counts {
		i, j := nodes[s], nodes[s+1]
		l := p.over(i, j)
		out.Cost += p.stage(l, i, j).price(float64(k))
		out.Iterations[s] = p.iteration(l, float64(k))
	}
	out.OneStage = p.stage(p.over(0, p.buckets()), 0, p.buckets()).price(float64(p.w.Replicas))
	return out
}

// table holds the stage of every range of buckets: that of [i, j) is row(j)[i].
type table struct {
	n      int // buckets
	stages []stage
}

// table prices all n(n+1)/2 ranges.
func (p *pricing) table() table {
	n := p.buckets()
	t := table{n: n, stages: make([]stage, n*(n+1)/2)}
	for j := 1; j <= n; j++ {
		row := t.row(j)
		var l load
		for i := j - 1; i >= 0; i-- {
			l = p.cells[i].plus(l)
			row[i] = p.stage(l, i, j)
		}
	}
	return t
}

// row returns the stages that end at j, by their start.
func (t table) row(j int) []stage { return t.stages[j*(j-1)/2 : j*(j+1)/2] }
