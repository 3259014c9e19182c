package move

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Migration is one migration as seen by its source or its target.
type Migration struct {
	ID        string // the deal: seller/number
	Role      string // "source" or "target"
	Request   string
	Cause     policies.MigrationCause
	FrontEnd  policies.ReplicaID // "" as long as the target does not know it
	From, To  policies.ReplicaID
	Mode      string // "live", "reprompt", "handoff" (known at the end), or "" while undecided
	Transport string // name of the transport that carries the blocks; the source learns it from the target
	State     string // the current step, then "moved" or "failed"
	Rounds    int    // tables that were sent or pulled
	Tokens    int    // length at the source when the request was frozen, or tokens pulled so far
	Bytes     int64  // KV bytes: those pulled, or at the source those to send
	// Stall is, at the source, how long the request produced no token: for a live migration from
	// the freeze to the front end's answer, for a re-prompt from the front end's cut to the
	// target's first token.
	Stall     time.Duration
	StartedAt time.Time
	Seconds   float64 // from its start to its end, or until now
	Failure   string  // reason of a failed migration
}

// Stats counts a replica's migrations since its start.
type Stats struct {
	Sent, Received map[string]uint64 // completed migrations, by mode
	Failed         map[string]uint64 // failed migrations at the source, by reason
	Running        int
	Bytes          int64  // bytes of KV received, as the engine states a token's size
	Copied         int64  // bytes copied by transports
	Corrupt        uint64 // blocks received with wrong checksums
	Rounds         uint64 // pulls
	// Rescued and Lost count the streams of this replica's front end that lost their engine and
	// then continued on another one, or ended.
	Rescued, Lost uint64
	// SessionsAbandoned counts the engine sessions that were abandoned because the
	// engine did not thaw, drop or release.
	SessionsAbandoned uint64
}

// record is a migration with its span and its freeze.
type record struct {
	Migration
	span     trace.Span // nil until it is begun
	frozenAt time.Time
}

// beginSpan begins the record's span, below that of ctx, unless it is begun.
func (rec *record) beginSpan(ctx context.Context, tracer trace.Tracer) {
	if rec.span != nil {
		return
	}
	_, rec.span = tracer.Start(ctx, "migration."+rec.Role, trace.WithTimestamp(rec.StartedAt), trace.WithAttributes(
		attribute.String("cascade.migration", rec.ID), attribute.String("cascade.request", rec.Request), attribute.String("cascade.cause", rec.Cause.String()),
		attribute.String("cascade.from", string(rec.From)), attribute.String("cascade.to", string(rec.To))))
}

// records is the history of migrations. Its methods are safe for concurrent use.
type records struct {
	tracer  trace.Tracer
	onStall func(time.Duration, trace.SpanContext) // may be nil

	mu       sync.Mutex
	running  map[key]*record
	order    []key     // keys of running, by start
	finished []*record // latest finished migrations, oldest first
	stats    Stats
}

func newRecords(c Config) records {
	return records{tracer: c.Tracer, onStall: c.OnStall, running: map[key]*record{},
		stats: Stats{Sent: map[string]uint64{}, Received: map[string]uint64{}, Failed: map[string]uint64{}}}
}

// begin creates the record of a migration and, at the source, its span. At the target
// the span begins with the Accept, which says to which trace it belongs.
func (r *records) begin(ctx context.Context, k key, a bidask.Action, from, to, front policies.ReplicaID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[k] != nil {
		return
	}
	rec := &record{Migration: Migration{ID: a.Deal.String(), Role: k.role.String(), Request: a.Migration.Request, Cause: a.Migration.Cause, FrontEnd: front, From: from, To: to,
		State: "opening", Tokens: int(a.Migration.Length), StartedAt: time.Now()}}
	if k.role == source {
		rec.beginSpan(ctx, r.tracer)
	}
	r.running[k], r.order = rec, append(r.order, k)
}

// update edits the record of a running migration.
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

// recordMessage records a message that this side sent.
func (r *records) recordMessage(k key, msg Message) {
	r.update(k, func(rec *record) {
		switch msg.Kind {
		case Pulling:
			return // a keep-alive: the state stays
		case Accept:
			rec.Mode = msg.Mode.String()
		case Round, Manifest:
			rec.Rounds = int(msg.Round)
		case Pulled:
			rec.State = "waiting"
			return
		}
		rec.State = msg.Kind.String()
	})
}

// transportOf returns the transport of a running migration as a list, or nil.
func (r *records) transportOf(k key) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.running[k]; rec != nil && rec.Transport != "" {
		return []string{rec.Transport}
	}
	return nil
}

// recordAccept records the source's Accept, with the traceparent of its span.
func (r *records) recordAccept(k key, msg Message, trace string) {
	r.update(k, func(rec *record) {
		rec.FrontEnd, rec.Mode = msg.FrontEnd, msg.Mode.String()
		rec.beginSpan(frontend.ContextWithTrace(context.Background(), trace), r.tracer)
	})
}

// traceOf returns the traceparent of a migration's span; "" for none.
func (r *records) traceOf(k key) (parent string) {
	r.update(k, func(rec *record) {
		if rec.span != nil {
			parent = frontend.TraceOf(trace.ContextWithSpan(context.Background(), rec.span))
		}
	})
	return parent
}

// recordFreeze records when a request was frozen, its length and its size.
func (r *records) recordFreeze(k key, at time.Time, length int, bytes int64) {
	r.update(k, func(rec *record) { rec.frozenAt, rec.Tokens, rec.Bytes = at, length, bytes })
}

// recordThaw records the end of a freeze.
func (r *records) recordThaw(k key) {
	r.update(k, func(rec *record) {
		if rec.frozenAt.IsZero() {
			return
		}
		rec.Stall = time.Since(rec.frozenAt)
		rec.frozenAt = time.Time{}
		r.addStall(rec.Stall, rec.span)
	})
}

// recordStall records the stall that the front end reports for a request that was not frozen.
func (r *records) recordStall(k key, stall time.Duration) {
	r.update(k, func(rec *record) {
		if rec.Stall == 0 && stall > 0 {
			rec.Stall = stall
			r.addStall(stall, rec.span)
		}
	})
}

// addStall reports a stall, which belongs to a span or to none.
func (r *records) addStall(d time.Duration, span trace.Span) {
	if r.onStall == nil {
		return
	}
	var of trace.SpanContext
	if span != nil {
		of = span.SpanContext()
	}
	r.onStall(d, of)
}

// recordPull records a pulled round.
func (r *records) recordPull(k key, a Action, bytes, copied int64) {
	r.update(k, func(rec *record) {
		rec.Mode, rec.Rounds, rec.Tokens = Live.String(), int(a.Round), int(a.Span.Computed)
		rec.Bytes += bytes
		r.stats.Bytes += bytes
		r.stats.Copied += copied
		r.stats.Rounds++
	})
}

// count changes the counters.
func (r *records) count(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// end finishes the record of a migration.
func (r *records) end(k key, a Action) (Migration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.running[k]
	if rec == nil {
		return Migration{}, false
	}
	delete(r.running, k)
	r.order = slices.DeleteFunc(r.order, func(o key) bool { return o == k })
	rec.Seconds = time.Since(rec.StartedAt).Seconds()
	rec.beginSpan(context.Background(), r.tracer)
	switch {
	case a.Kind == Completed:
		rec.State = "moved"
		if rec.Mode == "" || rec.Mode == Handoff.String() && a.Mode != Handoff {
			rec.Mode = Reprompt.String() // of a handoff: the source's engine was lost during it
		}
		counts := r.stats.Received
		if k.role == source {
			counts = r.stats.Sent
		}
		counts[rec.Mode]++
	default:
		rec.State, rec.Failure = "failed", a.Failure.String()
		if k.role == source {
			r.stats.Failed[rec.Failure]++
		}
		rec.span.SetStatus(codes.Error, rec.Failure)
	}
	rec.span.SetAttributes(attribute.String("cascade.mode", rec.Mode), attribute.Int("cascade.rounds", rec.Rounds), attribute.Int("cascade.tokens", rec.Tokens),
		attribute.Int64("cascade.bytes", rec.Bytes), attribute.Float64("cascade.stall_seconds", rec.Stall.Seconds()))
	rec.span.End()
	if len(r.finished) >= maxFinished {
		r.finished = slices.Delete(r.finished, 0, 1)
	}
	r.finished = append(r.finished, rec)
	return rec.Migration, true
}

// startSpan starts the span of one step of a migration.
func (r *records) startSpan(ctx context.Context, k key, step string) (context.Context, trace.Span) {
	r.mu.Lock()
	if rec := r.running[k]; rec != nil {
		rec.beginSpan(ctx, r.tracer)
		ctx = trace.ContextWithSpan(ctx, rec.span)
	}
	r.mu.Unlock()
	return r.tracer.Start(ctx, "migration."+step)
}

// list returns all known migrations.
func (r *records) list() []Migration {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Migration, 0, len(r.order)+len(r.finished))
	for _, k := range r.order {
		migration := r.running[k].Migration
		migration.Seconds = time.Since(migration.StartedAt).Seconds()
		out = append(out, migration)
	}
	for _, rec := range r.finished {
		out = append(out, rec.Migration)
	}
	return out
}

// FrontEnds returns the front ends of the requests that this replica exports, in no order and
// possibly repeated. The network must monitor them even if the request no longer runs here: nothing
// else ends such a migration.
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
	s.Sent, s.Received, s.Failed = maps.Clone(s.Sent), maps.Clone(s.Received), maps.Clone(s.Failed)
	return s
}

// RecordRescue records the rescue of a stream of this replica's front end that had lost
// its engine. It never blocks and may be called concurrently, even when Run does not run.
func (m *Executor) RecordRescue(r frontend.Rescue) {
	_, span := m.cfg.Tracer.Start(frontend.ContextWithTrace(context.Background(), r.Trace), "migration.rescue", trace.WithTimestamp(r.Start), trace.WithAttributes(
		attribute.String("cascade.request", r.Stream), attribute.String("cascade.from", string(r.From)), attribute.String("cascade.to", string(r.To)),
		attribute.Int64("cascade.tokens", int64(r.Length)), attribute.Float64("cascade.stall_seconds", r.Duration.Seconds())))
	if r.Err != nil {
		span.RecordError(r.Err)
		span.SetStatus(codes.Error, "the stream ends")
	}
	span.End(trace.WithTimestamp(r.Start.Add(r.Duration)))
	m.records.recordRescue(r, span)
}

func (r *records) recordRescue(x frontend.Rescue, span trace.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.Err != nil {
		r.stats.Lost++
		return
	}
	r.stats.Rescued++
	r.addStall(x.Duration, span)
}
