package place

import (
	"math"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Engine is what a Model knows of an engine that never changes.
type Engine struct {
	// Cost is the price of an iteration.
	Cost policies.Cost
	// Skew is the share, 0 … 1, of the way from the sum of a batch's lengths to that of a batch in which
	// all are as long as the longest, that attention pays for.
	Skew float64
	// Batch is how many sequences run at once, Chunk how many tokens an iteration computes at most, and KV
	// how many tokens the KV cache holds. All are positive.
	Batch int
	Chunk policies.Tokens
	KV    policies.Tokens
}

// The defaults of an Engine.
const (
	DefaultBatch                 = 256
	DefaultChunk policies.Tokens = 8192
)

// seconds is the time of an iteration of n sequences that hold so many tokens, the longest so many.
func (e *Engine) seconds(n, held, longest float64) float64 {
	c := &e.Cost
	attended := held + (e.Skew+c.Kappa/n)*(n*longest-held)
	return c.D0 + c.D1*n + c.D4*attended
}

// typical is the time of an iteration by which engines are compared.
func (e *Engine) typical() float64 { return e.seconds(16, 16*1024, 1024) }

// prompt is the time to compute a prompt's tokens from position start to position end, beside the
// iterations in which that happens.
func (e *Engine) prompt(start, end float64) float64 {
	return e.Cost.D2*(end-start) + e.Cost.D3*(end*end-start*start)
}

// Running is one or more sequences of one engine that generate tokens and are expected to end together.
type Running struct {
	Count   int             // at least 1
	Length  policies.Tokens // the sum of their lengths
	Longest policies.Tokens // of them
	// Remaining is how many tokens each of them is expected to generate yet.
	Remaining policies.Tokens
	// Weight is the sum of their weights: what a second costs that they end later.
	Weight float64
}

// Waiting is a request of one engine that has no first token yet.
type Waiting struct {
	Length policies.Tokens // of the prompt, and of what was generated before a preemption
	Cached policies.Tokens // of them, what need not be computed (any more)
	// Copied is how much of Cached is copied from another replica before.
	Copied policies.Tokens
	// Allocated is how much of the KV cache it has already. Its start takes what is neither cached nor allocated.
	Allocated policies.Tokens
	// Output is how many tokens it is expected to generate yet.
	Output policies.Tokens
	// Ready is when it can start: a prefix may be on its way. 0: at once.
	Ready policies.Micros
	// Weight is what a second costs that it ends later, and FirstWeight what a second costs that its first
	// token comes later. 0 after the first token.
	Weight, FirstWeight float64
}

// Model predicts when the requests of one engine end, from how long an iteration takes and how many tokens each
// request is expected to generate. Iterations with prompts are run one by one. Between two of them and two ends the
// batch is the same, so that all iterations together have a closed form: a prediction takes about as many steps as
// there are requests.
//
// It knows no preemption: a batch that outgrows the KV cache goes on, and prompts wait until there is room.
//
// Not safe for concurrent use. No call but Add allocates, once the Model has held as many requests before.
type Model struct {
	engine  *Engine
	now     float64 // seconds
	iter    float64 // iterations since the last reset
	count   float64 // sequences that run
	held    float64 // tokens that they hold
	free    float64 // of the KV cache
	longest float64 // length of the longest, less iter
	running []runningGroup
	ended   int // of running
	waiting []waitingPrompt
	started int // of waiting
	cost    float64
}

// runningGroup is Running in a Model, in the order of their ends.
type runningGroup struct {
	end     float64 // in iterations
	base    float64 // the sum of the lengths, less count·iter
	kv      float64 // the KV tokens that are free after their end, less count·iter
	longest float64 // less iter
	count   float64
	weight  float64
}

// waitingPrompt is Waiting in a Model.
type waitingPrompt struct {
	at, left            float64 // computed, and to be computed
	needs               float64 // KV tokens that its start takes
	kv                  float64 // KV tokens that are free after its end
	output              float64
	ready               float64
	weight, firstWeight float64
	begun               bool
}

// Reset makes m the model of an idle engine, which is kept and must not be changed.
func (m *Model) Reset(e *Engine, now policies.Micros) {
	*m = Model{
		engine: e, now: seconds(now), free: float64(e.KV), longest: math.Inf(-1),
		running: m.running[:0], waiting: m.waiting[:0],
	}
}

// CopyFrom makes m equal to o.
func (m *Model) CopyFrom(o *Model) {
	running, waiting := append(m.running[:0], o.running[o.ended:]...), append(m.waiting[:0], o.waiting[o.started:]...)
	*m = *o
	m.running, m.ended, m.waiting, m.started = running, 0, waiting, 0
}

// AddRunning adds sequences that run now.
func (m *Model) AddRunning(r Running) {
	m.addGroup(runningGroup{
		end: m.iter + float64(max(r.Remaining, 0)), base: float64(r.Length), kv: float64(r.Length),
		longest: float64(r.Longest), count: float64(r.Count), weight: r.Weight,
	})
	m.free -= float64(r.Length)
}

// SetUsed sets how many tokens of the KV cache are used, where sequences share prefixes: less than the sum of
// their lengths.
func (m *Model) SetUsed(used policies.Tokens) {
	taken := float64(m.engine.KV) - m.free
	if taken <= 0 || float64(used) >= taken {
		return
	}
	share := max(float64(used), 0) / taken
	m.free = float64(m.engine.KV) - float64(used)
	for i := m.ended; i < len(m.running); i++ {
		m.running[i].kv *= share
	}
	for i := m.started; i < len(m.waiting); i++ {
		m.waiting[i].kv *= share
	}
}

// addGroup adds a group whose base and longest are lengths.
func (m *Model) addGroup(g runningGroup) {
	m.held += g.base
	m.count += g.count
	g.base -= g.count * m.iter
	g.kv -= g.count * m.iter
	g.longest -= m.iter
	m.longest = max(m.longest, g.longest)
	at := len(m.running)
	for at > m.ended && m.running[at-1].end > g.end {
		at--
	}
	m.running = slices.Insert(m.running, at, g)
}

// AddWaiting adds a request behind those that are ready as early. Those that wait for a prefix let others go first.
func (m *Model) AddWaiting(w Waiting) {
	cached := min(w.Cached, max(w.Length-1, 0))
	p := waitingPrompt{
		at: float64(cached), left: float64(w.Length - cached),
		needs: float64(max(w.Length-max(w.Allocated, cached), 0)), kv: float64(w.Allocated), output: float64(w.Output),
		ready: seconds(w.Ready), weight: w.Weight, firstWeight: w.FirstWeight,
	}
	at := len(m.waiting)
	for at > m.started && m.waiting[at-1].ready > max(p.ready, m.now) && !m.waiting[at-1].begun {
		at--
	}
	m.waiting = slices.Insert(m.waiting, at, p)
	m.free -= float64(w.Allocated)
}

// Held returns how many tokens the sequences hold that run.
func (m *Model) Held() policies.Tokens { return policies.Tokens(m.held) }

// Advance moves m to a time. The time does not go back.
func (m *Model) Advance(now policies.Micros) {
	m.run(seconds(now))
	m.now = max(m.now, seconds(now))
	if m.ended > minEnded && 2*m.ended > len(m.running) {
		m.running, m.ended = slices.Delete(m.running, 0, m.ended), 0
	}
	if m.started > minEnded && 2*m.started > len(m.waiting) {
		m.waiting, m.started = slices.Delete(m.waiting, 0, m.started), 0
	}
}

// minEnded is how many requests that have ended are kept before their memory is used again.
const minEnded = 64

// usualIteration is the iteration, in seconds, at which a second of delay costs what the weights say.
const usualIteration = 0.01

// congestion returns what a second of delay costs at the engine beside one more request of so many tokens, as a factor:
// the square root of how long an iteration of all requests takes. So cost is convex. Where tokens come slowly, a
// further delay costs more, and no replica collects all that slows others down.
func (m *Model) congestion(more float64) float64 {
	n, held, longest := m.count+1, m.held+more, max(m.longest+m.iter, more)
	for i := m.started; i < len(m.waiting); i++ {
		length := m.waiting[i].at + m.waiting[i].left
		n, held, longest = n+1, held+length, max(longest, length)
	}
	return math.Sqrt(m.engine.seconds(n, held, longest) / usualIteration)
}

// Finish lets everything end and returns what the ends and first tokens cost: the sum of their times after
// now, times their weights.
func (m *Model) Finish() float64 {
	start := m.now
	m.cost = 0
	for i := m.ended; i < len(m.running); i++ {
		m.cost -= m.running[i].weight * start
	}
	for i := m.started; i < len(m.waiting); i++ {
		m.cost -= (m.waiting[i].weight + m.waiting[i].firstWeight) * start
	}
	m.run(math.Inf(1))
	return m.cost
}

// run advances m until a time, or until nothing is left. An iteration that computes prompts may pass the time.
func (m *Model) run(until float64) {
	for m.now < until {
		next := m.nextPrompt()
		switch {
		case next != nil && m.canStart(next, 0):
			m.compute()
		case m.count > 0:
			if next != nil && next.ready > m.now {
				m.generate(min(until, next.ready))
			} else {
				m.generate(until)
			}
		case next != nil:
			m.now = min(until, next.ready)
		default:
			return
		}
	}
}

// nextPrompt returns the first prompt that waits, nil if there is none.
func (m *Model) nextPrompt() *waitingPrompt {
	if m.started == len(m.waiting) {
		return nil
	}
	return &m.waiting[m.started]
}

// canStart reports whether a prompt can be computed now, beside so many others. An idle engine takes every prompt.
func (m *Model) canStart(p *waitingPrompt, others float64) bool {
	n := m.count + others
	return p.begun || p.ready <= m.now && (n == 0 || n+1 <= float64(m.engine.Batch) && p.needs <= m.free)
}

// endGroups ends the groups whose last tokens have come.
func (m *Model) endGroups() {
	const rounding = 1e-6
	rescan := false
	for m.ended < len(m.running) && m.running[m.ended].end <= m.iter+rounding {
		g := &m.running[m.ended]
		m.ended++
		m.cost += g.weight * m.now
		m.held, m.free, m.count = m.held-g.base-g.count*m.iter, m.free+g.kv+g.count*m.iter, m.count-g.count
		rescan = rescan || g.longest >= m.longest
	}
	switch {
	case m.ended == len(m.running):
		m.held, m.count, m.longest = 0, 0, math.Inf(-1)
	case rescan:
		m.longest = math.Inf(-1)
		for i := m.ended; i < len(m.running); i++ {
			m.longest = max(m.longest, m.running[i].longest)
		}
	}
}

// iteration returns the time of the next iteration, and by how much each one after it takes longer.
func (m *Model) iteration() (first, growth float64) {
	if m.count == 0 {
		return m.engine.Cost.D0, 0
	}
	return m.engine.seconds(m.count, m.held, m.longest+m.iter), m.engine.Cost.D4 * m.count
}

// step moves m by iterations that take so long.
func (m *Model) step(iterations, takes float64) {
	m.now += takes
	m.iter += iterations
	m.held += m.count * iterations
	m.free -= m.count * iterations
}

// generate runs iterations without prompts, until the next group ends or the time comes.
func (m *Model) generate(until float64) {
	n := m.running[m.ended].end - m.iter
	first, growth := m.iteration()
	takes := n * (first + growth*n/2)
	if room := until - m.now; takes > room {
		n = iterationsIn(room, first, growth)
		takes = room
	}
	m.step(n, takes)
	m.endGroups()
}

// iterationsIn returns how many iterations end in so many seconds: the root of n·first + growth·n²/2.
func iterationsIn(room, first, growth float64) float64 {
	if growth*room < 1e-9*first*first {
		return room / first
	}
	return (math.Sqrt(first*first+2*growth*room) - first) / growth
}

// compute runs one iteration with prompts: of those that wait, as many as its budget takes. Those that are
// complete get their first tokens at its end.
func (m *Model) compute() {
	budget := max(1, float64(m.engine.Chunk)-m.count)
	takes, _ := m.iteration()
	end := m.started
	for others := 0.0; end < len(m.waiting) && budget > 0; end++ {
		p := &m.waiting[end]
		if !m.canStart(p, others) {
			break
		}
		if !p.begun {
			p.begun = true
			m.free, p.kv = m.free-p.needs, p.kv+p.needs
		}
		tokens := min(p.left, budget)
		takes += m.engine.prompt(p.at, p.at+tokens)
		p.at, p.left, budget = p.at+tokens, p.left-tokens, budget-tokens
		others++
	}
	m.step(1, takes)
	m.endGroups()
	for ; m.started < end && m.waiting[m.started].left == 0; m.started++ {
		m.begin(&m.waiting[m.started])
	}
}

// begin gives a prompt its first token.
func (m *Model) begin(p *waitingPrompt) {
	m.cost += p.firstWeight * m.now
	if p.output <= 1 {
		m.cost += p.weight * m.now
		m.free += p.kv
		return
	}
	m.addGroup(runningGroup{
		end: m.iter + p.output - 1, base: p.at + 1, kv: p.kv + 1, longest: p.at + 1, count: 1, weight: p.weight,
	})
	m.free--
}

// seconds converts a time.
func seconds(t policies.Micros) float64 { return float64(t) * 1e-6 }
