package place

import (
	"cmp"
	"math"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefixpull"
)

// The defaults of a Forecast.
const (
	DefaultAnswer        policies.Tokens = 128
	DefaultChunk         policies.Tokens = 8192
	DefaultMargin                        = 250 * policies.Millisecond
	DefaultShorterMargin                 = policies.Second
	DefaultPrefill                       = 400
	DefaultOthers                        = 10
	DefaultEvicted                       = 100
	DefaultBound                         = 200
	DefaultChoices                       = 2

	// boundSlack is how many tokens a replica may always hold above the bound on its load; where the
	// prompt is longer, its length: differences below it are single requests.
	boundSlack policies.Tokens = 16384
)

// Forecast places a request where it and the requests that run there lose the least time. For each
// suitable replica it predicts, from how much of the prompt the replica has cached,
//
//   - the time to the first token: the prompts that wait there, what of this prompt is not cached, and
//     the iterations of the batch that they join,
//   - the time to generate an answer in that batch,
//   - what the prompt and the answer add to the iterations of the requests that run there, and
//   - the time to compute the prompt once more, with a weight: it delays the requests that come next,
//     and a second copy of a prefix evicts another one.
//
// Where replicas copy prefixes from each other (Prices.Copied), a replica copies what another candidate has
// cached of the prompt, and computes only the rest, if prefixpull's rule allows it. A copy costs its time
// and, with a weight, the time to compute as many tokens, which it evicts. So an idle replica is preferred to
// a busy one that has the prefix.
//
// The least sum wins; the own replica wins unless a peer's sum is less by Margin, as what is known of
// peers is old. Among equal peers the one with the least load wins, then list order.
//
// The candidates are the own replica, the peers whose stage holds the request's length, and peers of other
// stages that have more of the prompt cached than all of those. From a shorter stage the market offers the
// request to its own later; in a longer one it stays. A request that cannot move is never placed in a shorter
// stage. Of the peers without a longer cached prefix only the first Choices are examined, so that front ends
// with the same old loads do not all pick the same one. Replicas that drain are no candidates, nor are those
// above the bound on load, unless all are.
//
// Two rules override the predicted times, which do not show that a full batch admits no waiting request. If
// the own queue exceeds Queue, and that of an examined peer is at most half as long, only such peers count.
// If the shortest queue of the stage exceeds Queue, the request goes to a replica of a longer stage whose
// queue is at most half as long, if there is one.
//
// Last, a peer of a shorter stage gets the request if its price is lower by more than ShorterMargin than the
// chosen replica's. Neither Bound nor Choices applies to it. Long prompts, of which each takes seconds, come in
// bursts, and would wait for each other beside idle replicas. The market offers the request to its stage once
// it has a token and is a bucket of lengths beyond the shorter one; until then, or if no replica bids, it stays.
// So this is only for requests that can move, and where KV is copied (Prices.Copied): a second engine would
// otherwise compute the prompt again.
//
// All sums are integers: equal calls give equal answers on every machine. The zero value knows no prices;
// it takes a microsecond for each uncached token.
type Forecast struct {
	Prices Prices
	// Answer is how many tokens a request is expected to generate, unless its maximum is less.
	// 0 means DefaultAnswer.
	Answer policies.Tokens
	// Chunk is how many tokens an engine's iteration computes at most. 0 means DefaultChunk.
	Chunk policies.Tokens
	// Margin is by how much a peer must be better than the own replica. 0 means DefaultMargin.
	Margin policies.Micros
	// ShorterMargin is by how much a peer of a shorter stage must be better than the replica chosen
	// otherwise. 0 means DefaultShorterMargin; NoShorter turns this off, but not placement by cached prefixes.
	ShorterMargin policies.Micros
	// Prefill is the weight of the time to compute the prompt, beyond the time to the first
	// token, and Others that of the time that other requests lose, in per cent. 0 means
	// DefaultPrefill and DefaultOthers.
	Prefill, Others int
	// Evicted is the weight of the time to compute as many tokens as are copied, in per cent. 0 means
	// DefaultEvicted.
	Evicted int
	// Bound is the bound on the load of a replica, in per cent of the mean of the candidates of
	// its stage, beside the slack of one request. 0 means DefaultBound.
	Bound int
	// Choices is how many peers are examined for their load alone. 0 means DefaultChoices.
	Choices int
	// Queue is the bound on waiting prompt tokens. 0 means DefaultQueue.
	Queue policies.Tokens
	// ByLength turns off the placement in other stages than that of the length.
	ByLength bool
}

// NoShorter is the ShorterMargin for fleets whose requests do not move: no replica is better by it.
const NoShorter policies.Micros = never

var _ policies.Placer = Forecast{}

// Place implements policies.Placer.
func (p Forecast) Place(a policies.Arrival) policies.ReplicaID {
	if a.Hops > 0 {
		return ""
	}
	j := judgement{Forecast: p.withDefaults(), arrival: &a, length: a.Request.Length()}
	serves := a.Own.Low <= j.length && j.length < a.Own.High
	j.ownServes = !a.Own.Draining && (serves || a.Request.Estimated)
	j.measureStage()
	best := j.choose(j.Bound)
	if best == nil {
		best = j.choose(math.MaxInt)
	}
	if best == nil && !a.Own.Draining && j.length < a.Own.Low {
		return "" // nothing is left of the stage, and the own replica is of a longer one
	}
	if best == nil || j.shortest > j.Queue && j.shortest < policies.Unbounded {
		if longer := j.chooseLonger(best != nil); longer != nil {
			best = longer
		}
	}
	if shorter := j.chooseShorter(best); shorter != nil {
		best = shorter
	}
	if best == nil || best == &a.Own {
		return ""
	}
	return best.ID
}

func (p Forecast) withDefaults() Forecast {
	p.Answer, p.Chunk = cmp.Or(p.Answer, DefaultAnswer), cmp.Or(p.Chunk, DefaultChunk)
	p.Margin, p.Queue = cmp.Or(p.Margin, DefaultMargin), cmp.Or(p.Queue, DefaultQueue)
	p.ShorterMargin = cmp.Or(p.ShorterMargin, DefaultShorterMargin)
	p.Prefill, p.Others, p.Evicted = cmp.Or(p.Prefill, DefaultPrefill), cmp.Or(p.Others, DefaultOthers), cmp.Or(p.Evicted, DefaultEvicted)
	p.Bound, p.Choices = cmp.Or(p.Bound, DefaultBound), cmp.Or(p.Choices, DefaultChoices)
	if p.Prices == (Prices{}) {
		p.Prices.Prompt = pico
	}
	return p
}

// judgement is one call of Place.
type judgement struct {
	Forecast
	arrival   *policies.Arrival
	length    policies.Tokens
	ownServes bool
	cached    policies.Tokens // the most that a replica of the stage has cached
	most      policies.Tokens // the most that any candidate has cached
	shortest  policies.Tokens // the fewest waiting tokens in the stage
	// means are those of the stages that were asked for; known of them are set.
	means [4]stageMean
	known int
}

// stageMean is the mean load of the candidates of one stage.
type stageMean struct{ low, high, load policies.Tokens }

// open reports whether a peer may get the request at all.
func (j *judgement) open(c *policies.Candidate) bool { return !c.Draining && c.ID != j.arrival.Own.ID }

// inStage reports whether a peer serves the length in its stage.
func (j *judgement) inStage(c *policies.Candidate) bool {
	return c.Low <= j.length && j.length < c.High && j.open(c)
}

// holdsMore reports whether a peer of another stage may get the request because of what it has cached.
func (j *judgement) holdsMore(c *policies.Candidate) bool {
	if j.ByLength || c.Prefix <= j.cached || !j.open(c) {
		return false
	}
	return j.length < c.High || policies.Movable(j.arrival.Request) == policies.NotPinned
}

// measureStage finds out what the candidates and the replicas of the stage have cached, and the shortest queue of
// these.
func (j *judgement) measureStage() {
	j.shortest, j.most = policies.Unbounded, clamp(j.arrival.Own.Prefix)
	if j.ownServes {
		j.cached, j.shortest = j.arrival.Own.Prefix, j.arrival.Own.Waiting
	}
	for i := range j.arrival.Peers {
		c := &j.arrival.Peers[i]
		j.most = max(j.most, clamp(c.Prefix))
		if j.inStage(c) {
			j.cached, j.shortest = max(j.cached, c.Prefix), min(j.shortest, c.Waiting)
		}
	}
}

// choose returns the best of the own replica, the stage and the holders in other stages, among those whose
// load is at most so many per cent of the mean; nil if there is none.
func (j *judgement) choose(bound int) (best *policies.Candidate) {
	a := j.arrival
	least, others, longest := never, 0, policies.Unbounded
	if j.ownServes && j.withinBound(&a.Own, bound) {
		best, least = &a.Own, j.price(&a.Own)
	}
	for i := range a.Peers {
		c := &a.Peers[i]
		if !j.inStage(c) && !j.holdsMore(c) || !j.withinBound(c, bound) {
			continue
		}
		if j.ownServes && c.Prefix <= a.Own.Prefix {
			if others++; others > j.Choices {
				continue
			}
		}
		if c.Waiting > longest {
			continue
		}
		time := add(j.price(c), j.Margin)
		queued := longest == policies.Unbounded && j.ownServes && a.Own.Waiting > j.Queue && c.Waiting <= a.Own.Waiting/2
		if queued {
			longest = a.Own.Waiting / 2
		}
		if best == nil || queued || time < least || time == least && best != &a.Own && c.Load < best.Load {
			best, least = c, time
		}
	}
	return best
}

// chooseLonger returns the best replica of a longer stage, or nil. If there is another choice, only replicas
// count whose queue is at most half as long as the shortest of the stage.
func (j *judgement) chooseLonger(another bool) (best *policies.Candidate) {
	a := j.arrival
	waiting, least := policies.Unbounded, never
	if another {
		waiting = j.shortest / 2
	}
	for i := range a.Peers {
		c := &a.Peers[i]
		if c.Low <= j.length || !j.open(c) || c.Waiting > waiting {
			continue
		}
		if time := j.price(c); best == nil || time < least || time == least && c.Load < best.Load {
			best, least = c, time
		}
	}
	return best
}

// chooseShorter returns the best peer of a shorter stage, or nil if none is better by ShorterMargin than
// the replica that was chosen. It returns nil if none was chosen.
func (j *judgement) chooseShorter(chosen *policies.Candidate) (best *policies.Candidate) {
	a := j.arrival
	if chosen == nil || j.ByLength || j.Prices.Copied <= 0 || policies.Movable(a.Request) != policies.NotPinned {
		return nil
	}
	least := j.price(chosen)
	for i := range a.Peers {
		c := &a.Peers[i]
		if c.High > j.length || !j.open(c) {
			continue
		}
		if time := add(j.price(c), j.ShorterMargin); time < least {
			best, least = c, time
		}
	}
	return best
}

// withinBound reports whether a replica's load is at most so many per cent of the mean of the candidates
// of its stage, with some slack.
func (j *judgement) withinBound(c *policies.Candidate, percent int) bool {
	if percent == math.MaxInt {
		return true
	}
	return clamp(c.Load) <= j.mean(c.Low, c.High)*policies.Tokens(percent)/100+max(boundSlack, clamp(j.arrival.Request.Input))
}

// mean returns the mean load of the candidates of a stage, which has one.
func (j *judgement) mean(low, high policies.Tokens) policies.Tokens {
	for _, m := range j.means[:j.known] {
		if m.low == low && m.high == high {
			return m.load
		}
	}
	sum, n := policies.Tokens(0), policies.Tokens(0)
	if own := &j.arrival.Own; own.Low == low && own.High == high {
		sum, n = clamp(own.Load), 1
	}
	for i := range j.arrival.Peers {
		if x := &j.arrival.Peers[i]; x.Low == low && x.High == high && x.ID != j.arrival.Own.ID {
			sum, n = sum+clamp(x.Load), n+1
		}
	}
	if j.known < len(j.means) {
		j.means[j.known] = stageMean{low, high, sum / n}
		j.known++
	}
	return sum / n
}

// priceCopy returns how many tokens a replica with so many cached would copy from the candidate that has most of
// the prompt, and how long that and computing them take; zeros if it copies none.
func (j *judgement) priceCopy(cached, input policies.Tokens) (more policies.Tokens, copying, computing policies.Micros) {
	more = min(j.most, max(input-1, 0)) - cached
	if j.Prices.Copied <= 0 || more <= 0 {
		return 0, 0, 0
	}
	copying = add(product(more, j.Prices.Copied, pico), prefixpull.DefaultSetup)
	computing = add(j.Prices.prompt(more), j.Prices.prompt2((cached+more)*(cached+more)-cached*cached))
	if !(prefixpull.Policy{}).Pays(copying, computing) {
		return 0, 0, 0
	}
	return more, copying, computing
}

// price returns what a request costs at a replica.
func (j *judgement) price(c *policies.Candidate) policies.Micros {
	p, r := j.Prices, &j.arrival.Request
	input := clamp(r.Input)
	cached := min(clamp(c.Prefix), max(input-1, 0))
	more, copying, evicted := j.priceCopy(cached, input)
	cached += more
	uncached, waiting := input-cached, clamp(c.Waiting)
	running, held := policies.Tokens(min(max(c.Running, 0), maxRunning)), clamp(c.Load)
	answer := clamp(j.Answer)
	if r.MaxOutput > 0 {
		answer = min(answer, clamp(r.MaxOutput))
	}

	// The prompts that wait are taken to be as long as this one, at most.
	before := add(p.prompt(waiting), p.prompt2(waiting*min(waiting, input)))
	prefill := add(p.prompt(uncached), p.prompt2(input*input-cached*cached))
	iterations := (waiting + uncached + j.Chunk - 1) / j.Chunk
	first := add(add(add(before, copying), prefill), times(p.iteration(running, held), iterations))
	decode := times(p.iteration(running+1, held+input), answer)
	slower := times(p.decode(input+answer/2), answer)
	lost := times(add(prefill, slower), running)
	return add(add(first, decode), add(percent(lost, j.Others), add(percent(prefill, j.Prefill), percent(evicted, j.Evicted))))
}
