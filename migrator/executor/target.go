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

// importState is what the target's driver keeps of a move. It belongs to the job in
// progress.
type importState struct {
	blocks        []uint32 // reserved, in the order of positions
	blockTokens   int
	tokenBytes    int64
	memory        *transport.Memory // that the blocks are of
	pair          transport.Pair    // that the blocks come
	offers        []transport.Offer // not tried yet
	puller        transport.Puller
	transport     string
	hash          tokenhash.Hash
	corruptBlocks []int // entries of the round's plan that came with wrong sums
}

// reserveWithSlack sets blocks aside for a request of a length, and some for it to grow
// while it moves if the engine has them and a request may be as long. It is for
// the same request again when that has grown more.
func (m *Executor) reserveWithSlack(ctx context.Context, d bidask.Deal, length int) ([]uint32, error) {
	list, err := m.cfg.Engine.Reserve(ctx, d.String(), length+max(minSlack, length/slackShare))
	if err == nil || ctx.Err() != nil {
		return list, err
	}
	return m.cfg.Engine.Reserve(ctx, d.String(), length+1)
}

// reserveForDeal sets blocks aside for what the market has bought. Without an engine
// that serves blocks there is nothing to set aside: the market has counted.
func (m *Executor) reserveForDeal(a bidask.Action) {
	if m.describeEngine().Fingerprint == 0 {
		m.cfg.Notify(bidask.Event{Kind: bidask.Reserved, Deal: a.Deal})
		return
	}
	k, length := key{target, a.Deal}, int(a.Migration.Length)
	m.enqueue(k, job{kind: transfer.Prepare, run: func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, engineTimeout)
		defer cancel()
		kind := bidask.Reserved
		if _, err := m.reserveWithSlack(ctx, a.Deal, length); err != nil {
			kind = bidask.ReservationRefused
			m.log.Info("no blocks for a request that was bought", "move", a.Deal.String(), "tokens", length, "error", err)
		}
		return func() {
			if kind == bidask.ReservationRefused {
				m.releaseReservation(a.Deal) // the answer may have been lost, not the call
			}
			m.cfg.Notify(bidask.Event{Kind: kind, Deal: a.Deal})
		}
	}})
}

// beginImport begins the target's side of a move.
func (m *Executor) beginImport(a bidask.Action) {
	if m.imports[a.Deal] != nil {
		return
	}
	m.imports[a.Deal] = &importState{}
	m.records.begin(m.ctx, key{target, a.Deal}, a, a.Peer, m.cfg.Self, "")
	m.step(transfer.Event{Kind: transfer.ImportStarted, Deal: a.Deal, Peer: a.Peer, Engine: m.describeEngine(), Transports: m.pullTransports(a.Peer)})
}

// reportFailure reports what did not work.
func (m *Executor) reportFailure(d bidask.Deal, why transfer.Failure, err error) func() {
	m.log.Info("a move breaks", "move", d.String(), "why", why.String(), "error", err)
	return func() { m.step(transfer.Event{Kind: transfer.ActionFailed, Deal: d, Failure: why}) }
}

// prepareImport sees that the reservation suffices and opens a transport.
func (m *Executor) prepareImport(a transfer.Action) {
	k, in := key{target, a.Deal}, m.imports[a.Deal]
	from, until := m.pairWith(a.Peer), m.clockTime(a.Deadline)
	m.records.setState(k, "preparing")
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.startSpan(ctx, k, "prepare")
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		d, ok := m.cfg.Engine.Description()
		memory, mapped := m.cfg.Engine.Memory()
		if !ok || !mapped {
			return m.reportFailure(a.Deal, transfer.EngineRefused, errors.New("the engine is away"))
		}
		length := int(a.Span.Length)
		list, err := m.reserveWithSlack(ctx, a.Deal, length)
		if err != nil {
			return m.reportFailure(a.Deal, transfer.OutOfBlocks, err)
		}
		*in = importState{blocks: list, blockTokens: d.BlockTokens, tokenBytes: int64(d.TokenBytes), memory: memory, pair: from, offers: slices.Clone(a.Offers)}
		if err := m.openTransport(ctx, in); err != nil {
			return m.reportFailure(a.Deal, transfer.NoTransport, err)
		}
		name := in.transport
		return func() {
			m.records.setTransport(k, name)
			m.step(transfer.Event{Kind: transfer.Prepared, Deal: a.Deal})
		}
	}})
}

// openTransport presents the ticket of the best transport here that has not been tried
// for this move.
func (m *Executor) openTransport(ctx context.Context, in *importState) error {
	last := errors.New("no transport is common to both sides")
	for {
		offered := make([]string, 0, len(in.offers))
		for _, o := range in.offers {
			offered = append(offered, o.Transport)
		}
		order := m.paths.order(in.pair, offered)
		if len(order) == 0 {
			return last
		}
		at := slices.Index(offered, order[0].Name())
		offer := in.offers[at]
		in.offers = slices.Delete(in.offers, at, at+1)
		puller, err := order[0].Open(ctx, m.cfg.Self, offer)
		if err != nil {
			m.log.Warn("a transport does not get through", "transport", offer.Transport, "error", err)
			m.paths.recordFailure(ctx, in.pair, offer.Transport, err)
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

// pullRound brings a round's blocks, or those that came with wrong sums.
func (m *Executor) pullRound(a transfer.Action) {
	k, in := key{target, a.Deal}, m.imports[a.Deal]
	until := m.clockTime(a.Deadline)
	m.records.setState(k, "pulling")
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.startSpan(ctx, k, "pull")
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		begun := time.Now()
		if err := m.growReservation(ctx, in, a); err != nil {
			return m.reportFailure(a.Deal, transfer.OutOfBlocks, err)
		}
		plan, hash, err := in.planPull(a)
		if err != nil {
			return m.reportFailure(a.Deal, transfer.TableMismatch, err)
		}
		err = m.pullPlan(ctx, in, plan)
		if bad := (*transport.CorruptError)(nil); errors.As(err, &bad) {
			in.corruptBlocks = mapIndices(in.corruptBlocks, bad.Blocks)
			return func() {
				m.records.recordCorruptBlocks(len(bad.Blocks))
				m.step(transfer.Event{Kind: transfer.Corrupt, Deal: a.Deal, Round: a.Round})
			}
		}
		if err != nil {
			return m.reportFailure(a.Deal, transfer.NoTransport, err)
		}
		in.corruptBlocks, in.hash = nil, hash
		tokens := int64(a.Span.Computed - a.Span.From)
		if err := m.pacer.wait(ctx, begun, tokens*in.tokenBytes); err != nil {
			return m.reportFailure(a.Deal, transfer.DeadlineExceeded, err)
		}
		if err := m.cfg.Engine.MarkFilled(ctx, a.Deal.String(), int(a.Span.From), a.Table.IDs, int(a.Span.Computed)); err != nil {
			return m.reportFailure(a.Deal, transfer.OutOfBlocks, err)
		}
		name, moved := in.transport, int64(len(plan.Src))*in.memory.BlockBytes()
		return func() {
			m.records.setTransport(k, name)
			m.records.recordPull(k, a, tokens*in.tokenBytes, moved)
			m.step(transfer.Event{Kind: transfer.Verified, Deal: a.Deal, Round: a.Round})
		}
	}})
}

// growReservation sets more blocks aside for a request that has outgrown its reservation.
func (m *Executor) growReservation(ctx context.Context, in *importState, a transfer.Action) error {
	have, s := uint64(len(in.blocks)*in.blockTokens), a.Span
	if s.Computed <= have || s.Computed < s.From || a.Table == nil || uint64(len(a.Table.IDs)) < s.Computed-s.From {
		return nil // enough, or the plan's to refuse
	}
	list, err := m.reserveWithSlack(ctx, a.Deal, int(s.Computed))
	if err != nil {
		return err
	}
	if len(list) < len(in.blocks) || !slices.Equal(list[:len(in.blocks)], in.blocks) {
		return errors.New("the engine has given other blocks to the same reservation")
	}
	in.blocks = list
	return nil
}

// planPull says which blocks a round still brings, and the hash of all ids then. It
// takes nothing on trust that a peer has written.
func (in *importState) planPull(a transfer.Action) (transport.Plan, tokenhash.Hash, error) {
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
	if in.corruptBlocks == nil {
		return p, hash, nil
	}
	var rest transport.Plan
	for _, i := range in.corruptBlocks {
		rest.Src, rest.Dst = append(rest.Src, p.Src[i]), append(rest.Dst, p.Dst[i])
		rest.Sums = append(rest.Sums, p.Sums[i*regions:(i+1)*regions]...)
	}
	return rest, hash, nil
}

// mapIndices translates indices into a plan that was a part of the round's into those
// of the round's.
func mapIndices(part, bad []int) []int {
	if part == nil {
		return slices.Clone(bad)
	}
	out := make([]int, 0, len(bad))
	for _, i := range bad {
		out = append(out, part[i])
	}
	return out
}

// pullPlan pulls a plan, by the next transport when one fails.
func (m *Executor) pullPlan(ctx context.Context, in *importState, plan transport.Plan) error {
	if len(plan.Src) == 0 {
		return nil
	}
	for {
		stats, err := in.puller.Pull(ctx, plan)
		if err == nil {
			m.paths.recordPull(in.pair, in.transport, stats)
			return nil
		}
		m.paths.recordFailure(ctx, in.pair, in.transport, err)
		if bad := (*transport.CorruptError)(nil); errors.As(err, &bad) {
			return err
		}
		in.puller.Close()
		m.log.Warn("a pull fails", "transport", in.transport, "error", err)
		if ctx.Err() != nil || m.openTransport(ctx, in) != nil {
			return err
		}
	}
}

// releaseReservation stops what is pulled and frees the reservation.
func (m *Executor) releaseReservation(d bidask.Deal) {
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
		m.retryUntilAnswered(ctx, "release", d, func(ctx context.Context) error { return m.cfg.Engine.Release(ctx, d.String()) })
		return func() { delete(m.closing, in) }
	}})
}

// close ends the pulls of a move.
func (in *importState) close() {
	if in != nil && in.puller != nil {
		in.puller.Close()
	}
}
