package move

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// exportJob is the executor's state of the source of a migration. The running job owns
// the hashes, Run's goroutine the rest.
type exportJob struct {
	leg    string
	offers []transport.Offer

	// confirmed is the hash of the ids before position at; listed is the hash of the last table,
	// which may not have been sent.
	confirmed, listed struct {
		hash prefix.Hash
		at   int
	}
}

// hashBefore returns the hash of the ids before a position, which must be confirmed.at
// or listed.at.
func (x *exportJob) hashBefore(from int) (prefix.Hash, error) {
	if from == x.listed.at {
		x.confirmed = x.listed
	}
	if from != x.confirmed.at {
		return 0, errors.New("internal error: a round does not start at the end of an earlier one")
	}
	return x.confirmed.hash, nil
}

// describeEngine describes this replica's engine to the machine.
func (m *Executor) describeEngine() KVFormat {
	if m.cfg.Engine == nil {
		return KVFormat{}
	}
	d, ok := m.cfg.Engine.Description()
	if !ok || d.BlockTokens <= 0 {
		return KVFormat{}
	}
	return KVFormat{Fingerprint: d.Fingerprint, BlockTokens: uint32(d.BlockTokens)}
}

// findResident returns the request that runs on this replica's engine. If a request has two legs,
// one of which is about to be dropped, findResident returns the later one.
func (m *Executor) findResident(request string) (r frontend.LocalLeg, ok bool) {
	for _, o := range m.cfg.FrontEnd().LocalLegs() {
		if o.Request.ID == request && (!ok || o.Since.After(r.Since)) {
			r, ok = o, true
		}
	}
	if r.FrontEnd == "" {
		r.FrontEnd = m.cfg.Self
	}
	return r, ok
}

// beginExport starts an export.
func (m *Executor) beginExport(a bidask.Action) {
	if m.exports[a.Deal] != nil {
		return
	}
	r, ok := m.findResident(a.Migration.Request)
	if !ok {
		m.cfg.Notify(bidask.Event{Kind: bidask.TransferFailed, Deal: a.Deal, Over: true})
		return
	}
	m.exports[a.Deal] = &exportJob{leg: r.Name}
	m.records.begin(frontend.ContextWithTrace(m.ctx, r.Trace), key{source, a.Deal}, a, m.cfg.Self, a.Peer, r.FrontEnd)
	m.step(Event{Kind: ExportStarted, Deal: a.Deal, Peer: a.Peer, Engine: m.describeEngine(), Transports: m.cfg.Paths.ExportNames(a.Peer),
		Request: Request{ID: r.Request.ID, FrontEnd: r.FrontEnd, Epoch: r.Epoch, Length: uint64(max(0, r.Request.Length())), Pinned: r.Pinned,
			KeepsKV: a.Migration.Cause == policies.Prefill}})
}

// abortIfRequestEnded ends a migration whose request has ended or left while the target
// pulls. Otherwise this is detected only after the whole round.
func (m *Executor) abortIfRequestEnded(d bidask.Deal) {
	x := m.exports[d]
	if x == nil || slices.ContainsFunc(m.cfg.FrontEnd().LocalLegs(), func(r frontend.LocalLeg) bool { return r.Name == x.leg }) {
		return
	}
	m.step(Event{Kind: ActionFailed, Deal: d, Failure: RequestEnded})
}

// transportOffers creates the tickets of a migration, once.
func (m *Executor) transportOffers(msg Message) []transport.Offer {
	x := m.exports[msg.Deal]
	if x == nil {
		return nil
	}
	if x.offers == nil {
		x.offers = m.cfg.Paths.Export(transport.Grant{Migration: msg.Deal.String(), Receiver: msg.To, Deadline: time.Now().Add(grantLifetime)})
	}
	return x.offers
}

// listBlocks lists and checksums the full blocks of a running request, at most as many
// as fit into one message.
func (m *Executor) listBlocks(a Action) {
	m.enqueueTableCall(a, func(ctx context.Context, leg string, from int) (kvport.Table, bool, error) {
		t, err := m.cfg.Engine.Table(ctx, leg, from)
		if err != nil {
			return t, false, err
		}
		memory, ok := m.cfg.Engine.Memory()
		if !ok {
			return t, false, kvport.ErrUnavailable
		}
		full := max(from, t.Computed/t.BlockTokens*t.BlockTokens)
		// A block takes its ids, its number, and a checksum per region.
		most := max(1, (m.cfg.MaxEnvelope-envelopeRoom)/(maxVarintBytes*(t.BlockTokens+1+len(memory.Regions))))
		n := min((full-from)/t.BlockTokens, most)
		t.Computed = from + n*t.BlockTokens
		t.IDs, t.Blocks = t.IDs[:n*t.BlockTokens], t.Blocks[:n]
		return t, t.Computed < full, nil
	})
}

// freezeRequest freezes a request and lists the rest of its blocks.
func (m *Executor) freezeRequest(a Action) {
	m.enqueueTableCall(a, func(ctx context.Context, leg string, from int) (kvport.Table, bool, error) {
		m.cfg.FrontEnd().FreezeLeg(leg, true)
		t, err := m.cfg.Engine.Freeze(ctx, leg, from)
		if err != nil {
			m.cfg.FrontEnd().FreezeLeg(leg, false)
		}
		return t, false, err
	})
}

// enqueueTableCall executes List or Freeze. ask also reports whether more blocks remain.
func (m *Executor) enqueueTableCall(a Action, ask func(ctx context.Context, leg string, from int) (kvport.Table, bool, error)) {
	k, x := key{source, a.Deal}, m.exports[a.Deal]
	answer, until := Listed, time.Now().Add(engineTimeout)
	if a.Kind == Freeze {
		answer, until = Frozen, m.clockTime(a.Deadline)
		m.records.setState(k, "freezing")
	}
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		ctx, span := m.records.startSpan(ctx, k, a.Kind.String())
		defer span.End()
		ctx, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		from := int(a.Span.From)
		t, part, err := ask(ctx, x.leg, from)
		at := time.Now()
		ev := Event{Kind: answer, Deal: a.Deal, Partial: part, Table: &Table{IDs: t.IDs, Blocks: t.Blocks},
			Span: Span{From: a.Span.From, Computed: uint64(t.Computed), Length: uint64(t.Length), Generation: t.Generation, Cached: uint64(t.Cached)}}
		if err == nil {
			ev.Table.Sums, err = transport.ChecksumBlocks(m.cfg.Engine, t.Blocks)
		}
		var hash prefix.Hash
		if err == nil {
			hash, err = x.hashBefore(from)
		}
		if err != nil {
			span.RecordError(err)
			m.log.Info("listing or freezing a request failed", "migration", a.Deal.String(), "leg", x.leg, "freeze", a.Kind == Freeze, "error", err)
			return func() { m.step(Event{Kind: ActionFailed, Deal: a.Deal, Failure: failureOf(err)}) }
		}
		x.listed.hash, x.listed.at = hash.Extend(t.IDs...), from+len(t.IDs)
		ev.Span.Hash = x.listed.hash
		return func() {
			if m.exports[a.Deal] != nil { // the target may read the blocks with its tickets
				m.cfg.Paths.Announce(a.Deal.String(), t.Blocks)
			}
			if answer == Frozen {
				d, _ := m.cfg.Engine.Description()
				m.records.recordFreeze(k, at, t.Length, int64(t.Length)*int64(d.TokenBytes))
			}
			m.step(ev)
		}
	}})
}

// failureOf maps an engine's error to the reason of a failed migration.
func failureOf(err error) Failure {
	switch {
	case errors.Is(err, kvport.ErrNotFound):
		return RequestEnded
	case errors.Is(err, kvport.ErrFull):
		return OutOfBlocks
	}
	return EngineRefused
}

// unfreeze thaws or drops a frozen request. It retries until the engine has answered or
// is unavailable, when nothing is frozen any more.
func (m *Executor) unfreeze(a Action) {
	k, x := key{source, a.Deal}, m.exports[a.Deal]
	m.records.recordThaw(k)
	call := m.cfg.Engine.Thaw
	if a.Kind == Drop {
		call = m.cfg.Engine.Drop
	}
	m.enqueue(k, job{kind: a.Kind, run: func(ctx context.Context) func() {
		m.insist(ctx, a.Kind.String(), a.Deal, func(ctx context.Context) error { return call(ctx, x.leg) })
		m.cfg.FrontEnd().FreezeLeg(x.leg, false)
		return nil
	}})
}

// insist makes a call to the engine until it is answered.
func (m *Executor) insist(ctx context.Context, call string, d bidask.Deal, do func(context.Context) error) {
	if kvport.Insist(ctx, m.log, call, d.String(), do, m.cfg.Engine.AbandonSession) {
		m.records.count(func(s *Stats) { s.SessionsAbandoned++ })
	}
}

// revokeOffers revokes the tickets of a migration.
func (m *Executor) revokeOffers(a Action) {
	x := m.exports[a.Deal]
	if x == nil || len(x.offers) == 0 {
		return
	}
	m.enqueue(key{source, a.Deal}, job{kind: a.Kind, run: func(context.Context) func() {
		m.cfg.Paths.Revoke(a.Deal.String())
		return nil
	}})
}
