package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/tokenhash"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// intake is what the target's driver keeps of a move. It belongs to the job in
// progress.
type intake struct {
	blocks      []uint32 // reserved, in the order of positions
	blockTokens int
	tokenBytes  int64
	memory      *transport.Memory // that the blocks are of
	way         transport.Pair    // that the blocks come
	offers      []transport.Offer // not tried yet
	puller      transport.Puller
	transport   string
	hash        tokenhash.Hash
	corrupt     []int // entries of the round's plan that came with wrong sums
}

// room sets blocks aside for a request of a length, and some for it to grow
// while it moves if the engine has them and a request may be as long. It is for
// the same request again when that has grown more.
func (m *Mover) room(ctx context.Context, d bidask.Deal, length int) ([]uint32, error) {
	list, err := m.cfg.Engine.Reserve(ctx, d.String(), length+max(leastSlack, length/slackShare))
	if err == nil || ctx.Err() != nil {
		return list, err
	}
	return m.cfg.Engine.Reserve(ctx, d.String(), length+1)
}

// reserve sets blocks aside for what the market has bought. Without an engine
// that serves blocks there is nothing to set aside: the market has counted.
func (m *Mover) reserve(a bidask.Action) {
	if m.engine().Fingerprint == 0 {
		m.cfg.Tell(bidask.Event{Kind: bidask.Reserved, Deal: a.Deal})
		return
	}
	k, length := key{target, a.Deal}, int(a.Migration.Length)
	m.enqueue(k, job{kind: transfer.Prepare, run: func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, engineTimeout)
		defer cancel()
		kind := bidask.Reserved
		if _, err := m.room(ctx, a.Deal, length); err != nil {
			kind = bidask.ReservationRefused
			m.log.Info("no blocks for a request that was bought", "move", a.Deal.String(), "tokens", length, "error", err)
		}
		return func() {
			if kind == bidask.ReservationRefused {
				m.release(a.Deal) // the answer may have been lost, not the call
			}
			m.cfg.Tell(bidask.Event{Kind: kind, Deal: a.Deal})
		}
	}})
}

// intake begins the target's side of a move.
func (m *Mover) intake(a bidask.Action) {
	if m.imports[a.Deal] != nil {
		return
	}
	m.imports[a.Deal] = &intake{}
	m.records.begin(m.ctx, key{target, a.Deal}, a, a.Peer, m.cfg.Self, "")
	m.step(transfer.Event{Kind: transfer.Importing, Move: a.Deal, Peer: a.Peer, Engine: m.engine(), Transports: m.pulling(a.Peer)})
}

// broken reports what did not work.
func (m *Mover) broken(d bidask.Deal, why transfer.Why, err error) func() {
	m.log.Info("a move breaks", "move", d.String(), "why", why.String(), "error", err)
	return func() { m.step(transfer.Event{Kind: transfer.Broken, Move: d, Why: why}) }
}

// prepare sees that the reservation suffices and opens a transport.
func (m *Mover) prepare(a transfer.Action) {
	k, in := key{target, a.Move}, m.imports[a.Move]
	from, until := m.from(a.Peer), m.until(a.Deadline)
	m.records.state(k, "preparing")
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.span(ctx, k, "prepare")
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		d, ok := m.cfg.Engine.Description()
		memory, mapped := m.cfg.Engine.Memory()
		if !ok || !mapped {
			return m.broken(a.Move, transfer.Refused, errors.New("the engine is away"))
		}
		length := int(a.Span.Length)
		list, err := m.room(ctx, a.Move, length)
		if err != nil {
			return m.broken(a.Move, transfer.NoRoom, err)
		}
		*in = intake{blocks: list, blockTokens: d.BlockTokens, tokenBytes: int64(d.TokenBytes), memory: memory, way: from, offers: slices.Clone(a.Offers)}
		if err := m.open(ctx, in); err != nil {
			return m.broken(a.Move, transfer.NoRoute, err)
		}
		name := in.transport
		return func() {
			m.records.transport(k, name)
			m.step(transfer.Event{Kind: transfer.Prepared, Move: a.Move})
		}
	}})
}

// open presents the ticket of the best transport here that has not been tried
// for this move.
func (m *Mover) open(ctx context.Context, in *intake) error {
	last := errors.New("no transport is common to both sides")
	for {
		offered := make([]string, 0, len(in.offers))
		for _, o := range in.offers {
			offered = append(offered, o.Transport)
		}
		order := m.routes.order(in.way, offered)
		if len(order) == 0 {
			return last
		}
		at := slices.Index(offered, order[0].Name())
		offer := in.offers[at]
		in.offers = slices.Delete(in.offers, at, at+1)
		puller, err := order[0].Open(ctx, m.cfg.Self, offer)
		if err != nil {
			m.log.Warn("a transport does not get through", "transport", offer.Transport, "error", err)
			m.routes.fail(ctx, in.way, offer.Transport, err)
			last = err
			continue
		}
		// An engine that came back has another memory, of which nothing is reserved.
		if now, ok := m.cfg.Engine.Memory(); !ok || now != in.memory {
			puller.Close()
			return errors.New("the engine has been away")
		}
		in.puller, in.transport = puller, offer.Transport
		return nil
	}
}

// pull brings a round's blocks, or those that came with wrong sums.
func (m *Mover) pull(a transfer.Action) {
	k, in := key{target, a.Move}, m.imports[a.Move]
	until := m.until(a.Deadline)
	m.records.state(k, "pulling")
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.span(ctx, k, "pull")
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		begun := time.Now()
		if err := m.widen(ctx, in, a); err != nil {
			return m.broken(a.Move, transfer.NoRoom, err)
		}
		plan, hash, err := in.plan(a)
		if err != nil {
			return m.broken(a.Move, transfer.Mismatched, err)
		}
		err = m.carry(ctx, in, plan)
		if bad := (*transport.CorruptError)(nil); errors.As(err, &bad) {
			in.corrupt = again(in.corrupt, bad.Blocks)
			return func() {
				m.records.corrupt(len(bad.Blocks))
				m.step(transfer.Event{Kind: transfer.Corrupt, Move: a.Move, Round: a.Round})
			}
		}
		if err != nil {
			return m.broken(a.Move, transfer.NoRoute, err)
		}
		in.corrupt, in.hash = nil, hash
		tokens := int64(a.Span.Computed - a.Span.From)
		if err := m.link.carry(ctx, begun, tokens*in.tokenBytes); err != nil {
			return m.broken(a.Move, transfer.Late, err)
		}
		if err := m.cfg.Engine.Filled(ctx, a.Move.String(), int(a.Span.From), a.Table.IDs, int(a.Span.Computed)); err != nil {
			return m.broken(a.Move, transfer.NoRoom, err)
		}
		name, moved := in.transport, int64(len(plan.Src))*in.memory.BlockBytes()
		return func() {
			m.records.transport(k, name)
			m.records.pulled(k, a, tokens*in.tokenBytes, moved)
			m.step(transfer.Event{Kind: transfer.Filled, Move: a.Move, Round: a.Round})
		}
	}})
}

// widen sets more blocks aside for a request that has outgrown its reservation.
func (m *Mover) widen(ctx context.Context, in *intake, a transfer.Action) error {
	have, s := uint64(len(in.blocks)*in.blockTokens), a.Span
	if s.Computed <= have || s.Computed < s.From || a.Table == nil || uint64(len(a.Table.IDs)) < s.Computed-s.From {
		return nil // enough, or the plan's to refuse
	}
	list, err := m.room(ctx, a.Move, int(s.Computed))
	if err != nil {
		return err
	}
	if len(list) < len(in.blocks) || !slices.Equal(list[:len(in.blocks)], in.blocks) {
		return errors.New("the engine has given other blocks to the same reservation")
	}
	in.blocks = list
	return nil
}

// plan says which blocks a round still brings, and the hash of all ids then. It
// takes nothing on trust that a peer has written.
func (in *intake) plan(a transfer.Action) (transport.Plan, tokenhash.Hash, error) {
	size, s, t := uint64(in.blockTokens), a.Span, a.Table
	end := s.Computed
	if a.Last {
		end = s.Length
	}
	first, last := s.From/size, (s.Computed+size-1)/size
	regions := len(in.memory.Regions)
	switch {
	case t == nil || s.From%size != 0 || s.Computed < s.From || end < s.Computed:
		return transport.Plan{}, 0, fmt.Errorf("a table of positions %d to %d of %d", s.From, s.Computed, end)
	case uint64(len(t.IDs)) != end-s.From:
		return transport.Plan{}, 0, fmt.Errorf("%d ids for positions %d to %d", len(t.IDs), s.From, end)
	case uint64(len(t.Blocks)) != last-first || len(t.Sums) != len(t.Blocks)*regions:
		return transport.Plan{}, 0, fmt.Errorf("%d blocks and %d sums for positions %d to %d", len(t.Blocks), len(t.Sums), s.From, s.Computed)
	case last > uint64(len(in.blocks)):
		return transport.Plan{}, 0, fmt.Errorf("%d tokens in a reservation of %d blocks", s.Computed, len(in.blocks))
	}
	hash := in.hash.Add(t.IDs...)
	if a.Last && hash != s.Hash {
		return transport.Plan{}, 0, errors.New("the ids do not have the manifest's hash")
	}
	p := transport.Plan{Src: t.Blocks, Dst: in.blocks[first:last], Sums: t.Sums}
	if in.corrupt == nil {
		return p, hash, nil
	}
	var rest transport.Plan
	for _, i := range in.corrupt {
		rest.Src, rest.Dst = append(rest.Src, p.Src[i]), append(rest.Dst, p.Dst[i])
		rest.Sums = append(rest.Sums, p.Sums[i*regions:(i+1)*regions]...)
	}
	return rest, hash, nil
}

// again translates indices into a plan that was a part of the round's into those
// of the round's.
func again(part, bad []int) []int {
	if part == nil {
		return slices.Clone(bad)
	}
	out := make([]int, 0, len(bad))
	for _, i := range bad {
		out = append(out, part[i])
	}
	return out
}

// carry pulls a plan, by the next transport when one fails.
func (m *Mover) carry(ctx context.Context, in *intake, plan transport.Plan) error {
	if len(plan.Src) == 0 {
		return nil
	}
	for {
		stats, err := in.puller.Pull(ctx, plan)
		if err == nil {
			m.routes.pulled(in.way, in.transport, stats)
			return nil
		}
		m.routes.fail(ctx, in.way, in.transport, err)
		if bad := (*transport.CorruptError)(nil); errors.As(err, &bad) {
			return err
		}
		in.puller.Close()
		m.log.Warn("a pull fails", "transport", in.transport, "error", err)
		if ctx.Err() != nil || m.open(ctx, in) != nil {
			return err
		}
	}
}

// release stops what is pulled and frees the reservation.
func (m *Mover) release(d bidask.Deal) {
	in := m.imports[d]
	delete(m.imports, d)
	if m.cfg.Engine == nil {
		return
	}
	if in != nil {
		m.closing[in] = true
	}
	m.enqueue(key{target, d}, job{kind: transfer.Release, run: func(ctx context.Context) func() {
		in.close()
		m.insist(ctx, "release", d, func(ctx context.Context) error { return m.cfg.Engine.Release(ctx, d.String()) })
		return func() { delete(m.closing, in) }
	}})
}

// close ends the pulls of a move.
func (in *intake) close() {
	if in != nil && in.puller != nil {
		in.puller.Close()
	}
}
