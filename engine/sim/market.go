package sim

import (
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// reserve reserves a buyer's KV for a deal, if there is room.
func (c *cascade) reserve(f *front, a *bidask.Action) {
	blocks := &batch.Reservation{}
	if err := f.replica.scheduler.Reserve(blocks, int(a.Migration.Length)+lastRound); err != nil {
		c.post(f, bidask.Event{Kind: bidask.ReservationRefused, Deal: a.Deal})
		return
	}
	f.reserved[a.Deal] = blocks
	c.post(f, bidask.Event{Kind: bidask.Reserved, Deal: a.Deal})
}

// release frees a reservation.
func (c *cascade) release(f *front, deal bidask.Deal) {
	if blocks := f.reserved[deal]; blocks != nil {
		f.replica.scheduler.Release(blocks)
		delete(f.reserved, deal)
		c.sim.resume(f.replica)
	}
}

// startTransfer starts to pull a request that a buyer has reserved KV for.
func (c *cascade) startTransfer(f *front, a *bidask.Action) {
	seller, deal := c.frontOf(a.Deal.Seller), a.Deal
	q := seller.replica.find(a.Migration.Request)
	if q == nil || q.transfer != nil || f.reserved[deal] == nil {
		c.endDeal(seller, f, deal, false)
		return
	}
	t := &transfer{request: q, from: seller.replica, to: f.replica, blocks: f.reserved[deal]}
	t.ended = func(moved bool) {
		if moved {
			q.arrived = c.now()
			c.leave(q, seller)
			c.join(q, f, true)
		}
		c.endDeal(seller, f, deal, moved)
	}
	c.running[deal] = t
	c.sim.mover.start(t)
}

// endDeal reports the end of a deal's transfer to both sides.
func (c *cascade) endDeal(seller, buyer *front, deal bidask.Deal, moved bool) {
	delete(c.running, deal)
	end := bidask.TransferFailed
	if moved {
		delete(buyer.reserved, deal)
		end = bidask.TransferDone
	}
	c.post(seller, bidask.Event{Kind: end, Deal: deal})
	c.post(buyer, bidask.Event{Kind: end, Deal: deal})
}
