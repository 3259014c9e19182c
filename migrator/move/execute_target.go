package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// importJob is the executor's state of the target of a migration. The running job owns it.
type importJob struct {
	blocks      []uint32 // the reservation, in the order of positions
	blockTokens int
	tokenBytes  int64
	memory      *transport.Memory // the memory of the blocks
	pull        *transport.Pull
	hash        prefix.Hash
	scheduleBy  time.Time // do not wait for the engine's schedule after that
}

// reserveWithSlack reserves blocks for a request of a length and, if the engine has them and the
// request may be that long, for its growth while it migrates. A call for a longer request extends
// the reservation.
func (m *Executor) reserveWithSlack(ctx context.Context, d bidask.Deal, length int) ([]uint32, error) {
	list, err := m.cfg.Engine.Reserve(ctx, d.String(), length+max(minSlack, length/slackShare))
	if err == nil || ctx.Err() != nil {
		return list, err
	}
	return m.cfg.Engine.Reserve(ctx, d.String(), length+1)
}

// reserveForDeal reserves blocks for a request that the market has bought. If the engine does not
// serve blocks, there is nothing to reserve: the market has counted the request.
func (m *Executor) reserveForDeal(a bidask.Action) {
	if m.describeEngine().Fingerprint == 0 {
		m.cfg.Notify(bidask.Event{Kind: bidask.Reserved, Deal: a.Deal})
		return
	}
	k, length := key{target, a.Deal}, int(a.Migration.Length)
	m.enqueue(k, job{kind: Prepare, run: func(ctx context.Context) func() {
		ctx, cancel := context.WithTimeout(ctx, engineTimeout)
		defer cancel()
		kind := bidask.Reserved
		if _, err := m.reserveWithSlack(ctx, a.Deal, length); err != nil {
			kind = bidask.ReservationRefused
			m.log.Info("reservation refused", "migration", a.Deal.String(), "tokens", length, "error", err)
		}
		return func() {
			if kind == bidask.ReservationRefused {
				m.releaseReservation(a.Deal) // the call may have succeeded although its answer was lost
			}
			m.cfg.Notify(bidask.Event{Kind: kind, Deal: a.Deal})
		}
	}})
}

// beginImport starts an import.
func (m *Executor) beginImport(a bidask.Action) {
	if m.imports[a.Deal] != nil {
		return
	}
	m.imports[a.Deal] = &importJob{}
	m.records.begin(m.ctx, key{target, a.Deal}, a, a.Peer, m.cfg.Self, "")
	m.step(Event{Kind: ImportStarted, Deal: a.Deal, Peer: a.Peer, Engine: m.describeEngine(), Transports: m.cfg.Paths.PullNames(a.Peer)})
}

// reportFailure logs a failed action and returns the function that reports it to the machine.
func (m *Executor) reportFailure(d bidask.Deal, why Failure, err error) func() {
	m.log.Info("migration step failed", "migration", d.String(), "failure", why.String(), "error", err)
	return func() { m.step(Event{Kind: ActionFailed, Deal: d, Failure: why}) }
}

// prepareImport checks that the reservation suffices and opens a transport.
func (m *Executor) prepareImport(a Action) {
	k, in := key{target, a.Deal}, m.imports[a.Deal]
	until := m.clockTime(a.Deadline)
	m.records.setState(k, "preparing")
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.startSpan(ctx, k, "prepare")
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		d, ok := m.cfg.Engine.Description()
		memory, mapped := m.cfg.Engine.Memory()
		if !ok || !mapped {
			return m.reportFailure(a.Deal, EngineRefused, kvport.ErrUnavailable)
		}
		length := int(a.Span.Length)
		list, err := m.reserveWithSlack(ctx, a.Deal, length)
		if err != nil {
			return m.reportFailure(a.Deal, OutOfBlocks, err)
		}
		*in = importJob{blocks: list, blockTokens: d.BlockTokens, tokenBytes: int64(d.TokenBytes), memory: memory, scheduleBy: time.Now().Add(maxScheduleWait)}
		if in.pull, err = m.cfg.Paths.Open(ctx, a.Peer, a.Offers, memory); err != nil {
			return m.reportFailure(a.Deal, NoTransport, err)
		}
		if length <= d.BlockTokens*shortBlocks {
			m.awaitSchedule(ctx, in.scheduleBy) // the source may freeze it without another round
		}
		name := in.pull.Transport()
		return func() {
			m.records.setTransport(k, name)
			m.step(Event{Kind: Prepared, Deal: a.Deal})
		}
	}})
}

// awaitSchedule waits, while the request still runs at its source, until this engine can take it
// over without a pause: not during a step that prefills, nor before one. The source freezes the
// request only after the answer that follows.
func (m *Executor) awaitSchedule(ctx context.Context, until time.Time) {
	for time.Now().Before(until) {
		next, err := m.cfg.Engine.NextToken(ctx)
		if err != nil || next <= maxNextToken {
			return // the calls that follow report an engine that is lost
		}
		timer := time.NewTimer(min(max(next-maxNextToken, minScheduleWait), time.Until(until)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// pullRound pulls a round's blocks.
func (m *Executor) pullRound(a Action) {
	k, in := key{target, a.Deal}, m.imports[a.Deal]
	until := m.clockTime(a.Deadline)
	m.records.setState(k, "pulling")
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.startSpan(ctx, k, "pull")
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		if err := m.growReservation(ctx, in, a); err != nil {
			return m.reportFailure(a.Deal, OutOfBlocks, err)
		}
		plan, hash, err := in.planPull(a)
		if err != nil {
			return m.reportFailure(a.Deal, TableMismatch, err)
		}
		corrupt, err := in.pull.Pull(ctx, plan)
		m.records.count(func(s *Stats) { s.Corrupt += uint64(corrupt) })
		if errors.As(err, new(*transport.CorruptError)) {
			return m.reportFailure(a.Deal, ChecksumMismatch, err)
		}
		if err != nil {
			return m.reportFailure(a.Deal, NoTransport, err)
		}
		in.hash = hash
		tokens := int64(a.Span.Computed - a.Span.From)
		if err := m.cfg.Engine.MarkFilled(ctx, a.Deal.String(), int(a.Span.From), a.Table.IDs, int(a.Span.Computed)); err != nil {
			return m.reportFailure(a.Deal, OutOfBlocks, err)
		}
		if !a.Last { // now its client waits: it has its token with the next step, or later
			m.awaitSchedule(ctx, in.scheduleBy)
		}
		name, moved := in.pull.Transport(), int64(len(plan.Src))*in.memory.BlockBytes()
		return func() {
			m.records.setTransport(k, name)
			m.records.recordPull(k, a, tokens*in.tokenBytes, moved)
			m.step(Event{Kind: Verified, Deal: a.Deal, Round: a.Round})
		}
	}})
}

// growReservation reserves more blocks for a request that has outgrown its reservation.
func (m *Executor) growReservation(ctx context.Context, in *importJob, a Action) error {
	have, s := uint64(len(in.blocks)*in.blockTokens), a.Span
	if s.Computed <= have || s.Computed < s.From || a.Table == nil || uint64(len(a.Table.IDs)) < s.Computed-s.From {
		return nil // sufficient, or rejected by planPull
	}
	list, err := m.reserveWithSlack(ctx, a.Deal, int(s.Computed))
	if err != nil {
		return err
	}
	if len(list) < len(in.blocks) || !slices.Equal(list[:len(in.blocks)], in.blocks) {
		return errors.New("the engine returned other blocks for the same reservation")
	}
	in.blocks = list
	return nil
}

// planPull returns which blocks a round pulls, and the hash of all ids after it.
// It validates everything that the peer has sent.
func (in *importJob) planPull(a Action) (transport.Plan, prefix.Hash, error) {
	size, s, t := uint64(in.blockTokens), a.Span, a.Table
	end := s.Computed
	if a.Last {
		end = s.Length
	}
	first, last := s.From/size, (s.Computed+size-1)/size
	regions := len(in.memory.Regions)
	switch {
	case t == nil || s.From%size != 0 || s.Computed < s.From || end < s.Computed:
		return transport.Plan{}, 0, fmt.Errorf("invalid table: positions %d to %d of %d", s.From, s.Computed, end)
	case uint64(len(t.IDs)) != end-s.From:
		return transport.Plan{}, 0, fmt.Errorf("invalid table: %d ids for positions %d to %d", len(t.IDs), s.From, end)
	case uint64(len(t.Blocks)) != last-first || len(t.Sums) != len(t.Blocks)*regions:
		return transport.Plan{}, 0, fmt.Errorf("invalid table: %d blocks and %d checksums for positions %d to %d", len(t.Blocks), len(t.Sums), s.From, s.Computed)
	case last > uint64(len(in.blocks)):
		return transport.Plan{}, 0, fmt.Errorf("%d tokens exceed the reservation of %d blocks", s.Computed, len(in.blocks))
	}
	hash := in.hash.Extend(t.IDs...)
	if a.Last && hash != s.Hash {
		return transport.Plan{}, 0, errors.New("the ids do not match the manifest's hash")
	}
	return transport.Plan{Src: t.Blocks, Dst: in.blocks[first:last], Sums: t.Sums}, hash, nil
}

// releaseReservation stops pulling and frees the reservation.
func (m *Executor) releaseReservation(d bidask.Deal) {
	in := m.imports[d]
	delete(m.imports, d)
	if m.cfg.Engine == nil {
		return
	}
	if in != nil {
		m.closing[in] = true
	}
	m.enqueue(key{target, d}, job{kind: Release, run: func(ctx context.Context) func() {
		in.close()
		m.insist(ctx, "release", d, func(ctx context.Context) error { return m.cfg.Engine.Release(ctx, d.String()) })
		return func() { delete(m.closing, in) }
	}})
}

// close closes the puller of a migration.
func (in *importJob) close() {
	if in != nil {
		in.pull.Close()
	}
}
