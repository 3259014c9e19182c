package executor

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Migration is one move as this replica sees it, as its source or its target.
type Migration struct {
	ID        string // the deal: seller/number
	Role      string // "source" or "target"
	Request   string
	Cause     policies.MigrationCause
	FrontEnd  policies.ReplicaID // "" while the target does not know it
	From, To  policies.ReplicaID
	Mode      string // "live", "reprompt", or "" while it is not known
	Transport string // that carries the blocks; the source hears of it
	State     string // what it is about, then "moved" or "failed"
	Rounds    int    // tables that were sent or pulled
	Tokens    int    // length at the source when it froze, or that has been pulled
	Bytes     int64  // of KV, true ones: that came, or at the source that had to go
	// Stall is for how long the request brought no token, at its source: by a live
	// move from the freeze to the front's answer, by a reprompt from the front's
	// cut to the target's first token.
	Stall     time.Duration
	StartedAt time.Time
	Seconds   float64 // from its beginning to its end, or till now
	Failure   string  // of one that failed
}

// Stats counts a replica's moves since its start.
type Stats struct {
	Sent, Received map[string]uint64 // that have moved, by way
	Failed         map[string]uint64 // that have not, at the source, by reason
	Running        int
	Bytes          int64         // true bytes that came
	Copied         int64         // bytes that transports have copied
	Corrupt        uint64        // blocks that came with wrong sums
	Rounds         uint64        // pulls
	Stalls         uint64        // freezes that have ended, and reprompts and rescues that went well
	TotalStall     time.Duration // of all of them
	LongestStall   time.Duration
	// Rescued and Lost are the own front's streams that had lost their engines:
	// those that went on at another one, and those that had to end.
	Rescued, Lost uint64
	// SessionsAbandoned counts the sessions with the engine that were given up because it
	// did not thaw, drop or release.
	SessionsAbandoned uint64
}

// record is a move with what its owner alone needs.
type record struct {
	Migration
	span     trace.Span
	frozenAt time.Time
}

// records is the log of moves. Its methods are safe for concurrent use.
type records struct {
	tracer trace.Tracer

	mu       sync.Mutex
	running  map[key]*record
	order    []key     // of the live ones, by beginning
	finished []*record // the last ones, oldest first
	stats    Stats
}

func newRecords(c Config) records {
	return records{tracer: c.Tracer, running: map[key]*record{},
		stats: Stats{Sent: map[string]uint64{}, Received: map[string]uint64{}, Failed: map[string]uint64{}}}
}

// begin opens the record of a move, and its span.
func (r *records) begin(ctx context.Context, k key, a bidask.Action, from, to, front policies.ReplicaID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[k] != nil {
		return
	}
	rec := &record{Migration: Migration{ID: a.Deal.String(), Role: k.role.String(), Request: a.Migration.Request, Cause: a.Migration.Cause, FrontEnd: front, From: from, To: to,
		State: "opening", Tokens: int(a.Migration.Length), StartedAt: time.Now()}}
	_, rec.span = r.tracer.Start(ctx, "move."+rec.Role, trace.WithAttributes(
		attribute.String("cascade.move", rec.ID), attribute.String("cascade.request", rec.Request), attribute.String("cascade.cause", rec.Cause.String()),
		attribute.String("cascade.from", string(from)), attribute.String("cascade.to", string(to))))
	r.running[k], r.order = rec, append(r.order, k)
}

// update edits the record of a live move.
func (r *records) update(k key, edit func(*record)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.running[k]; rec != nil {
		edit(rec)
	}
}

func (r *records) setState(k key, s string) { r.update(k, func(rec *record) { rec.State = s }) }

func (r *records) setTransport(k key, name string) {
	r.update(k, func(rec *record) { rec.Transport = name })
}

// recordMessage takes note of what the move's own side tells the other.
func (r *records) recordMessage(k key, msg transfer.Message) {
	r.update(k, func(rec *record) {
		switch msg.Kind {
		case transfer.Pulling:
			return // it is on its way already
		case transfer.Accept:
			rec.Mode = msg.Mode.String()
		case transfer.Round, transfer.Manifest:
			rec.Rounds = int(msg.Round)
		case transfer.Pulled:
			rec.State = "waiting"
			return
		}
		rec.State = msg.Kind.String()
	})
}

// transportOf is the transport of a live move, as a list; nil while there is none.
func (r *records) transportOf(k key) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.running[k]; rec != nil && rec.Transport != "" {
		return []string{rec.Transport}
	}
	return nil
}

// recordAccept takes note of what a source offers.
func (r *records) recordAccept(k key, msg transfer.Message) {
	r.update(k, func(rec *record) { rec.FrontEnd, rec.Mode = msg.FrontEnd, msg.Mode.String() })
}

// recordFreeze takes note of the moment, the length and the size at which a request
// stood still.
func (r *records) recordFreeze(k key, at time.Time, length int, bytes int64) {
	r.update(k, func(rec *record) { rec.frozenAt, rec.Tokens, rec.Bytes = at, length, bytes })
}

// recordThaw takes note of the end of that.
func (r *records) recordThaw(k key) {
	r.update(k, func(rec *record) {
		if rec.frozenAt.IsZero() {
			return
		}
		rec.Stall = time.Since(rec.frozenAt)
		rec.frozenAt = time.Time{}
		r.stats.addStall(rec.Stall)
	})
}

// recordStall takes note of what the front tells of a request that was not frozen.
func (r *records) recordStall(k key, stall time.Duration) {
	r.update(k, func(rec *record) {
		if rec.Stall == 0 && stall > 0 {
			rec.Stall = stall
			r.stats.addStall(stall)
		}
	})
}

func (s *Stats) addStall(d time.Duration) {
	s.Stalls++
	s.TotalStall += d
	s.LongestStall = max(s.LongestStall, d)
}

// recordPull takes note of a round that has come.
func (r *records) recordPull(k key, a transfer.Action, bytes, copied int64) {
	r.update(k, func(rec *record) {
		rec.Mode, rec.Rounds, rec.Tokens = transfer.Live.String(), int(a.Round), int(a.Span.Computed)
		rec.Bytes += bytes
		r.stats.Bytes += bytes
		r.stats.Copied += copied
		r.stats.Rounds++
	})
}

func (r *records) recordCorruptBlocks(blocks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Corrupt += uint64(blocks)
}

func (r *records) recordAbandonedSession() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.SessionsAbandoned++
}

// end closes the record of a move.
func (r *records) end(k key, a transfer.Action) (Migration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.running[k]
	if rec == nil {
		return Migration{}, false
	}
	delete(r.running, k)
	r.order = slices.DeleteFunc(r.order, func(o key) bool { return o == k })
	rec.Seconds = time.Since(rec.StartedAt).Seconds()
	switch {
	case a.Kind == transfer.Completed && k.role == source:
		rec.State = "moved"
		r.stats.Sent[rec.Mode]++
	case a.Kind == transfer.Completed:
		rec.State = "moved"
		if rec.Mode == "" {
			rec.Mode = transfer.Reprompt.String()
		}
		r.stats.Received[rec.Mode]++
	default:
		rec.State, rec.Failure = "failed", a.Failure.String()
		if k.role == source {
			r.stats.Failed[rec.Failure]++
		}
		rec.span.SetStatus(codes.Error, rec.Failure)
	}
	rec.span.SetAttributes(attribute.String("cascade.way", rec.Mode), attribute.Int("cascade.rounds", rec.Rounds), attribute.Int("cascade.tokens", rec.Tokens),
		attribute.Int64("cascade.bytes", rec.Bytes), attribute.Float64("cascade.stall_seconds", rec.Stall.Seconds()))
	rec.span.End()
	if len(r.finished) >= maxFinished {
		r.finished = slices.Delete(r.finished, 0, 1)
	}
	r.finished = append(r.finished, rec)
	return rec.Migration, true
}

// startSpan begins the span of one step of a move.
func (r *records) startSpan(ctx context.Context, k key, step string) (context.Context, trace.Span) {
	r.mu.Lock()
	if rec := r.running[k]; rec != nil {
		ctx = trace.ContextWithSpan(ctx, rec.span)
	}
	r.mu.Unlock()
	return r.tracer.Start(ctx, "move."+step)
}

// list returns all moves that are known.
func (r *records) list() []Migration {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Migration, 0, len(r.order)+len(r.finished))
	for _, k := range r.order {
		move := r.running[k].Migration
		move.Seconds = time.Since(move.StartedAt).Seconds()
		out = append(out, move)
	}
	for _, rec := range r.finished {
		out = append(out, rec.Migration)
	}
	return out
}

// FrontEnds returns the fronts of the requests that this replica hands over, in no
// order and perhaps more than once. Their end must be noticed even when the
// request does not run here any more: nobody else ends the move.
func (m *Executor) FrontEnds() []policies.ReplicaID {
	r := &m.records
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []policies.ReplicaID
	for k, rec := range r.running {
		if k.role == source {
			out = append(out, rec.FrontEnd)
		}
	}
	return out
}

// snapshot returns the counters.
func (r *records) snapshot() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Running = len(r.running)
	clone := func(m map[string]uint64) map[string]uint64 {
		out := make(map[string]uint64, len(m))
		for k, v := range m {
			out[k] = v
		}
		return out
	}
	s.Sent, s.Received, s.Failed = clone(s.Sent), clone(s.Received), clone(s.Failed)
	return s
}

// startSwitchSpan begins the span of what a front does for others' moves.
func (m *Executor) startSwitchSpan(ctx context.Context, name string, d bidask.Deal, request string, way transfer.Mode) (context.Context, trace.Span) {
	return m.cfg.Tracer.Start(ctx, name, trace.WithAttributes(attribute.String("cascade.move", d.String()), attribute.String("cascade.request", request), attribute.String("cascade.way", way.String())))
}
