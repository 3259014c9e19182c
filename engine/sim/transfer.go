package sim

import (
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
)

// Moves counts what became of running requests that should move.
type Moves struct {
	Placed   uint64 `json:"placed"`   // requests that a front end forwarded before they began
	Offered  uint64 `json:"offered"`  // in the market
	Messages uint64 `json:"messages"` // of the market
	Moved    uint64 `json:"moved"`
	Failed   uint64 `json:"failed"` // transfers
	// Growth, Outlier, Spill, Prefill, Drain and Cheaper are the causes of those that moved. A router that rebalances
	// moves outliers.
	Growth  uint64 `json:"growth"`
	Outlier uint64 `json:"outlier"`
	Cheaper uint64 `json:"cheaper"`
	Spill   uint64 `json:"spill"`
	Prefill uint64 `json:"prefill"`
	Drain   uint64 `json:"drain"`
	// Rescued counts the requests that a front end resumed elsewhere after their replica was lost.
	Rescued uint64 `json:"rescued"`
	// Tokens is the KV that was transferred, StallSeconds the time in which moving requests were frozen.
	Tokens       policies.Tokens `json:"tokens"`
	StallSeconds float64         `json:"stall_seconds"`
	// Pulls counts prompts of which a prefix was copied from another replica, PulledTokens what was
	// copied.
	Pulls        uint64          `json:"pulls"`
	PulledTokens policies.Tokens `json:"pulled_tokens"`
}

// A live transfer copies the KV that there is, then what was computed meanwhile, and freezes the request
// for the last part: when that is at most lastRound tokens, or after maxRounds.
const (
	lastRound = 32
	maxRounds = 5
)

// transfer is a request on its way. Its creator sets the first fields.
type transfer struct {
	request  *request
	from, to *replica
	// blocks are reserved at the target.
	blocks *batch.Reservation
	// ended is called once, after the request has moved or stays.
	ended func(moved bool)

	lives    [2]uint32 // of from and to when it began: a reservation in an earlier life is gone
	copied   policies.Tokens
	rounds   int
	frozen   bool
	frozenAt time.Duration
	over     bool
}

// mover executes transfers over the replicas' links.
type mover struct {
	sim *Sim
	// copiedTokens is the KV that was transferred, stallTime the time in which requests were frozen.
	copiedTokens policies.Tokens
	stallTime    time.Duration
}

// start starts a live transfer.
func (m *mover) start(t *transfer) {
	m.register(t)
	m.copyRound(t)
}

// startFrozen starts the transfer of a request that was frozen at a time: all its KV is copied at once.
func (m *mover) startFrozen(t *transfer, at time.Duration) {
	m.register(t)
	t.frozen, t.frozenAt = true, at
	m.copyLast(t)
}

func (m *mover) register(t *transfer) {
	t.lives = [2]uint32{t.from.life, t.to.life}
	t.from.sending++
	t.to.receiving++
	t.from.transfers, t.to.transfers = append(t.from.transfers, t), append(t.to.transfers, t)
	t.request.transfer = t
}

// copyRound copies what was computed since the last round.
func (m *mover) copyRound(t *transfer) {
	length := t.request.length()
	delta := length - t.copied
	t.copied = length
	t.rounds++
	m.copiedTokens += delta
	m.sim.queue.push(event{at: m.sim.now + m.copyTime(t, delta), kind: copied, arg: t})
}

// copyLast copies what is left of a frozen request.
func (m *mover) copyLast(t *transfer) {
	delta := t.request.length() - t.copied
	m.copiedTokens += delta
	stall := m.copyTime(t, delta) + time.Duration(m.sim.cfg.Profile.TransferBase*float64(time.Second))
	m.sim.queue.push(event{at: m.sim.now + stall, kind: copied, arg: t})
}

// copyTime is the time to copy so many tokens: the links of both replicas are shared by the transfers
// that run as the copy begins.
func (m *mover) copyTime(t *transfer, tokens policies.Tokens) time.Duration {
	share := float64(max(1, t.from.sending, t.to.receiving))
	return time.Duration(float64(tokens) * share * m.sim.cfg.Profile.Transfer().PerToken * float64(time.Second))
}

// endRound goes on after a copy: with the next round, with the freeze, or with the switch.
func (m *mover) endRound(t *transfer) {
	switch {
	case t.over:
	case t.frozen:
		m.switchOver(t)
	case t.rounds < maxRounds && t.request.length()-t.copied > lastRound:
		m.copyRound(t)
	default:
		r := t.from
		r.freezing = append(r.freezing, t)
		if !r.running {
			m.freezePending(r)
		}
	}
}

// freezePending freezes the requests of a replica that wait for the end of its iteration.
func (m *mover) freezePending(r *replica) {
	pending := r.freezing
	r.freezing = nil
	for _, t := range pending {
		if t.over {
			continue
		}
		if !r.freeze(t.request) {
			m.fail(t) // it was preempted
			continue
		}
		t.frozen, t.frozenAt = true, m.sim.now
		m.copyLast(t)
	}
}

// switchOver makes the target's engine go on with a frozen request.
func (m *mover) switchOver(t *transfer) {
	q, from, to := t.request, t.from, t.to
	if to.scheduler.Reserve(t.blocks, int(q.length())) != nil {
		m.fail(t)
		return
	}
	old := q.sequence
	rest := batch.Request{MaxOutput: int(int64(q.Output) - q.tokens), Receiver: q}
	next, err := to.scheduler.AdoptLength(t.blocks, rest, old)
	if err != nil {
		m.fail(t)
		return
	}
	from.scheduler.Abort(old)
	from.remove(q)
	q.sequence, q.epoch, q.since = next, q.epoch+1, policies.Micros(m.sim.now.Microseconds())
	to.add(q)
	m.end(t)
	m.stallTime += m.sim.now - t.frozenAt
	t.ended(true)
	m.sim.resume(from)
	m.sim.resume(to)
}

// fail leaves a request where it is, and releases what is reserved for it.
func (m *mover) fail(t *transfer) {
	if t.over {
		return
	}
	if t.frozen && t.from.life == t.lives[0] {
		t.from.scheduler.Thaw(t.request.sequence)
	}
	m.end(t)
	if t.to.life == t.lives[1] {
		t.to.scheduler.Release(t.blocks)
	}
	t.ended(false)
	m.sim.resume(t.from)
	m.sim.resume(t.to)
}

// moves returns the counts of the transfers.
func (m *mover) moves() Moves {
	return Moves{Tokens: m.copiedTokens, StallSeconds: m.stallTime.Seconds()}
}

func (m *mover) end(t *transfer) {
	t.over = true
	t.from.sending--
	t.to.receiving--
	for _, r := range []*replica{t.from, t.to} {
		r.transfers = slices.DeleteFunc(r.transfers, func(x *transfer) bool { return x == t })
	}
	t.request.transfer = nil
}

// failAll fails the transfers from and to a replica whose engine was lost.
func (m *mover) failAll(r *replica) {
	for len(r.transfers) > 0 {
		m.fail(r.transfers[0])
	}
}
