package sim

import (
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Moves counts what became of running requests that should move.
type Moves struct {
	Placed   uint64 `json:"placed"`   // requests that a front end forwarded before they began
	Offered  uint64 `json:"offered"`  // in the market
	Messages uint64 `json:"messages"` // of the market
	Moved    uint64 `json:"moved"`
	Failed   uint64 `json:"failed"` // transfers
	// Growth, Outlier and Spill are the causes of those that moved.
	Growth  uint64 `json:"growth"`
	Outlier uint64 `json:"outlier"`
	Spill   uint64 `json:"spill"`
	// Tokens is the KV that was transferred, StallSeconds the time in which moving requests were frozen.
	Tokens       policies.Tokens `json:"tokens"`
	StallSeconds float64         `json:"stall_seconds"`
}

// A live transfer copies the KV that there is, then what was computed meanwhile, and freezes the request
// for the last part: when that is at most lastRound tokens, or after maxRounds.
const (
	lastRound = 32
	maxRounds = 5
)

// reservation is KV that a buyer keeps for a request.
type reservation struct {
	blocks    batch.Reservation
	migration policies.Migration
}

// transfer is a request on its way.
type transfer struct {
	deal     bidask.Deal
	request  *request
	from, to *front
	copied   policies.Tokens
	rounds   int
	frozen   bool
	frozenAt time.Duration
	over     bool
}

// reserve reserves a buyer's KV for a deal, if there is room.
func (c *cascade) reserve(f *front, a *bidask.Action) {
	r := &reservation{migration: a.Migration}
	if err := f.replica.scheduler.Reserve(&r.blocks, int(a.Migration.Length)+lastRound); err != nil {
		c.post(f, bidask.Event{Kind: bidask.ReservationRefused, Deal: a.Deal})
		return
	}
	f.reserved[a.Deal] = r
	c.post(f, bidask.Event{Kind: bidask.Reserved, Deal: a.Deal})
}

// release frees a reservation.
func (c *cascade) release(f *front, deal bidask.Deal) {
	if r := f.reserved[deal]; r != nil {
		f.replica.scheduler.Release(&r.blocks)
		delete(f.reserved, deal)
		c.sim.resume(f.replica)
	}
}

// startTransfer starts to pull a request that a buyer has reserved KV for.
func (c *cascade) startTransfer(f *front, a *bidask.Action) {
	seller := c.frontOf(a.Deal.Seller)
	q := seller.replica.find(a.Migration.Request)
	t := &transfer{deal: a.Deal, request: q, from: seller, to: f}
	seller.sending++
	f.receiving++
	c.running[a.Deal] = t
	if q == nil || q.transfer != nil {
		c.failTransfer(t)
		return
	}
	q.transfer = t
	c.copyRound(t)
}

// copyRound copies what was computed since the last round.
func (c *cascade) copyRound(t *transfer) {
	length := t.request.length()
	delta := length - t.copied
	t.copied = length
	t.rounds++
	c.copiedTokens += delta
	c.sim.queue.push(event{at: c.sim.now + c.copyTime(t, delta), kind: copied, arg: t})
}

// copyTime is the time to copy so many tokens: the links of both replicas are shared by the transfers
// that run as the copy begins.
func (c *cascade) copyTime(t *transfer, tokens policies.Tokens) time.Duration {
	share := float64(max(1, t.from.sending, t.to.receiving))
	return time.Duration(float64(tokens) * share * c.sim.cfg.Profile.Transfer().PerToken * float64(time.Second))
}

// endRound goes on after a copy: with the next round, with the freeze, or with the switch.
func (c *cascade) endRound(t *transfer) {
	switch {
	case t.over:
	case t.frozen:
		c.switchOver(t)
	case t.rounds < maxRounds && t.request.length()-t.copied > lastRound:
		c.copyRound(t)
	default:
		r := t.from.replica
		r.freezing = append(r.freezing, t)
		if !r.running {
			c.freezePending(r)
		}
	}
}

// freezePending freezes the requests of a replica that wait for the end of its iteration.
func (c *cascade) freezePending(r *replica) {
	pending := r.freezing
	r.freezing = nil
	for _, t := range pending {
		if t.over {
			continue
		}
		r.scheduler.Settle()
		if err := r.scheduler.Freeze(t.request.sequence, 1); err != nil {
			c.failTransfer(t) // it was preempted
			continue
		}
		t.frozen, t.frozenAt = true, c.sim.now
		delta := t.request.length() - t.copied
		c.copiedTokens += delta
		stall := c.copyTime(t, delta) + time.Duration(c.sim.cfg.Profile.TransferBase*float64(time.Second))
		c.sim.queue.push(event{at: c.sim.now + stall, kind: copied, arg: t})
	}
}

// switchOver makes the target's engine go on with a frozen request.
func (c *cascade) switchOver(t *transfer) {
	q, r := t.request, t.to.reserved[t.deal]
	from, to := t.from.replica, t.to.replica
	if r == nil || to.scheduler.Reserve(&r.blocks, int(q.length())) != nil {
		c.failTransfer(t)
		return
	}
	old := q.sequence
	rest := batch.Request{MaxOutput: int(int64(q.Output) - q.tokens), Receiver: q}
	next, err := to.scheduler.AdoptLength(&r.blocks, rest, old)
	if err != nil {
		c.failTransfer(t)
		return
	}
	from.scheduler.Abort(old)
	from.remove(q)
	q.sequence, q.epoch, q.since = next, q.epoch+1, c.now()
	to.add(q)
	delete(t.to.reserved, t.deal)
	c.endTransfer(t)
	c.stallTime += c.sim.now - t.frozenAt
	c.post(t.from, bidask.Event{Kind: bidask.TransferDone, Deal: t.deal})
	c.post(t.to, bidask.Event{Kind: bidask.TransferDone, Deal: t.deal})
	c.sim.resume(from)
	c.sim.resume(to)
}

// failTransfer leaves a request where it is.
func (c *cascade) failTransfer(t *transfer) {
	if t.over {
		return
	}
	if t.frozen {
		t.from.replica.scheduler.Thaw(t.request.sequence)
	}
	c.endTransfer(t)
	c.post(t.from, bidask.Event{Kind: bidask.TransferFailed, Deal: t.deal})
	c.post(t.to, bidask.Event{Kind: bidask.TransferFailed, Deal: t.deal})
	c.sim.resume(t.from.replica)
}

func (c *cascade) endTransfer(t *transfer) {
	t.over = true
	t.from.sending--
	t.to.receiving--
	delete(c.running, t.deal)
	if t.request != nil && t.request.transfer == t {
		t.request.transfer = nil
	}
}
