// Package loglimit limits how many log lines one event may cause. [New] wraps a
// slog.Handler; all lines of a process pass it, so components log what happens and do not
// count.
//
// An event is a log message: messages are constant, and what differs is in attributes.
// Within a minute an event is logged up to a few times for each subject (a replica, a
// node …) and up to some more times in total. What exceeds that is counted, and one line
// says so when the minute ends:
//
//	level=WARN msg="similar events not logged" event="stream lost its engine" count=1432 within=1m0s
//
// Invariant: errors, addresses and names that peers invent fill neither the log nor the
// memory.
package loglimit

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// Interval is the period in which the lines of an event are counted.
	Interval = time.Minute
	// PerSubject and PerEvent are how many lines of warning or error an event may cause
	// in an Interval: about one subject, and in total.
	PerSubject = 5
	PerEvent   = 60
	// PerInfo is the same for lines of information, whatever their subject.
	PerInfo = 600
	// maxEvents bounds the events that are remembered, should a message not be constant:
	// the others count as one.
	maxEvents = 1024
	// notLogged is the message of the line with the count.
	notLogged = "similar events not logged"
	// otherEvents is the name of all events beyond maxEvents.
	otherEvents = "other events"
)

// subjects are the attributes that name what an event is about.
var subjects = []string{"replica", "peer", "node", "client", "slot", "kind", "model", "cluster", "listener", "transport", "file"}

// Handler is a slog.Handler that limits the lines that another one writes. Debugging lines
// are not limited.
type Handler struct {
	next    slog.Handler
	subject string // of the attributes that it has
	state   *state
}

// state is shared by the handlers that were derived from one.
type state struct {
	root slog.Handler // for the counts

	mu     sync.Mutex
	events map[string]*event
	wg     sync.WaitGroup // reports that are due
}

// event is the lines of one event in one Interval.
type event struct {
	name     string // its message, or otherEvents
	level    slog.Level
	began    time.Time
	logged   int
	subjects map[string]int
	dropped  int
	report   *time.Timer // reports dropped; nil while it is 0
}

// New returns a Handler. Close reports what was not logged.
func New(next slog.Handler) *Handler {
	return &Handler{next: next, state: &state{root: next, events: make(map[string]*event)}}
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	subject := h.subject
	for _, a := range attrs {
		subject = addSubject(subject, a)
	}
	return &Handler{next: h.next.WithAttrs(attrs), subject: subject, state: h.state}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{next: h.next.WithGroup(name), subject: h.subject, state: h.state}
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		subject := h.subject
		r.Attrs(func(a slog.Attr) bool { subject = addSubject(subject, a); return true })
		if !h.state.allow(r.Message, subject, r.Level, time.Now()) {
			return nil
		}
	}
	return h.next.Handle(ctx, r)
}

// addSubject appends an attribute that names a subject. The port of an address differs
// from one connection to the next, so it does not count.
func addSubject(subject string, a slog.Attr) string {
	if !slices.Contains(subjects, a.Key) {
		return subject
	}
	value := a.Value.String()
	if host, port, err := net.SplitHostPort(value); err == nil {
		if _, err := strconv.ParseUint(port, 10, 16); err == nil {
			value = host
		}
	}
	return subject + a.Key + "=" + value + " "
}

// allow reports whether a line may be logged at now.
func (s *state) allow(message, subject string, level slog.Level, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.eventLocked(message, now)
	e.level = max(e.level, level)
	perSubject, perEvent := PerSubject, PerEvent
	if level < slog.LevelWarn {
		perSubject, perEvent = PerInfo, PerInfo
	}
	if e.logged < perEvent && e.subjects[subject] < perSubject {
		e.logged++
		e.subjects[subject]++
		return true
	}
	if e.dropped++; e.report == nil {
		s.wg.Add(1)
		e.report = time.AfterFunc(e.began.Add(Interval).Sub(now), func() { s.endInterval(e) })
	}
	return false
}

// eventLocked returns the event of a message in the present Interval.
func (s *state) eventLocked(message string, now time.Time) *event {
	e := s.events[message]
	if e != nil && (e.report != nil || now.Sub(e.began) < Interval) {
		return e // a report that is due ends the Interval
	}
	if e == nil && len(s.events) >= maxEvents {
		for other, e := range s.events {
			if e.report == nil && now.Sub(e.began) >= Interval {
				delete(s.events, other)
			}
		}
		if len(s.events) >= maxEvents {
			message = otherEvents
		}
	}
	if e = s.events[message]; e == nil || e.report == nil && now.Sub(e.began) >= Interval {
		e = &event{name: message, began: now, level: slog.LevelInfo, subjects: make(map[string]int)}
		s.events[message] = e
	}
	return e
}

// endInterval logs how many lines of an event were not logged, and forgets it.
func (s *state) endInterval(e *event) {
	defer s.wg.Done()
	s.mu.Lock()
	if s.events[e.name] == e {
		delete(s.events, e.name)
	}
	s.mu.Unlock()
	s.reportDropped(e)
}

// reportDropped logs how many lines of an event that is forgotten were not logged.
func (s *state) reportDropped(e *event) {
	r := slog.NewRecord(time.Now(), e.level, notLogged, 0)
	r.AddAttrs(slog.String("event", e.name), slog.Int("count", e.dropped), slog.Duration("within", Interval))
	_ = s.root.Handle(context.Background(), r) // a log that cannot be written has no reader
}

// Close reports what was not logged up to now. The Handler may be used on.
func (h *Handler) Close() {
	s := h.state
	s.mu.Lock()
	all := s.events
	s.events = make(map[string]*event)
	s.mu.Unlock()
	for _, e := range all {
		if e.report != nil && e.report.Stop() { // otherwise nothing was dropped, or endInterval reports it
			s.reportDropped(e)
			s.wg.Done()
		}
	}
	s.wg.Wait()
}
