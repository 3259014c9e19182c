// Package loglimit limits how many lines of one event a daemon logs, so that no client, peer or
// failure fills its disk, however many of them there are.
//
// Wrap gives it to a daemon's handler, in front of all that the daemon logs: no place that logs
// has to remember. An event is a message, which is constant; what differs between two of its lines
// is in their attributes, and a client that invents these still causes one event.
//
// Invariant: in a Window at most Burst lines of an event are logged, and one that says how many
// were not.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// Window is the time over which lines are counted.
	Window = time.Minute
	// Burst is the number of lines of one event in a Window. A fleet's change, which many
	// replicas log at once, has fewer in most fleets.
	Burst = 50
	// maxEvents bounds the events that are counted one by one. Further ones count as one event;
	// there are not as many messages in the code.
	maxEvents = 1024
)

// Wrap returns a handler that passes on to next what the limits allow. Lines for debugging are not
// limited: an operator who asks for them wants all.
func Wrap(next slog.Handler) slog.Handler {
	return handler{next, &events{root: next, counts: make(map[string]*count)}}
}

type handler struct {
	slog.Handler
	events *events
}

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.events}
}

func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.events}
}

func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo && !h.events.allow(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// events count the lines of every event.
type events struct {
	root slog.Handler // logs the counts

	mu     sync.Mutex
	counts map[string]*count
}

// count is the lines of one event in the present window.
type count struct {
	began   time.Time
	lines   int
	dropped int
}

// allow reports whether a line is to be logged, and counts it. The first one of a window that is
// not starts the timer that logs how many were not.
func (e *events) allow(r slog.Record) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	name := r.Message
	c := e.counts[name]
	if c == nil && len(e.counts) >= maxEvents {
		name = "other events"
		c = e.counts[name]
	}
	if c == nil {
		c = &count{}
		e.counts[name] = c
	}
	if r.Time.Sub(c.began) >= Window && c.dropped == 0 {
		*c = count{began: r.Time}
	}
	if c.lines++; c.lines <= Burst {
		return true
	}
	if c.dropped++; c.dropped == 1 {
		time.AfterFunc(c.began.Add(Window).Sub(r.Time), func() { e.report(name, r.Level, c) })
	}
	return false
}

// report logs how many lines of an event were not logged, and begins a new window.
func (e *events) report(name string, level slog.Level, c *count) {
	e.mu.Lock()
	dropped := c.dropped
	*c = count{}
	e.mu.Unlock()
	r := slog.NewRecord(time.Now(), level, "log lines of an event suppressed", 0)
	r.AddAttrs(slog.String("event", name), slog.Int("lines", dropped), slog.Duration("within", Window))
	_ = e.root.Handle(context.Background(), r) // as slog.Logger does
}
