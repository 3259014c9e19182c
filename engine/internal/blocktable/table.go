// Package blocktable is the emulator's block table as migrators see it: what the calls of engine/api do. Package kvport
// serves them.
//
// Package batch decides about sequences and blocks, on the loop's goroutine; this package
// keeps the sessions of the migrators and the names of reservations.
//
// Invariant: when a session ends, for whatever reason, everything made under its name is
// undone, except what a request has adopted.
//
// A session ends with its connection, and not earlier: there is no keepalive. A suspended
// migrator that resumes may still be writing to blocks that it reserved, which must not belong
// to another request then. The death of a migrator is noticed at once, because the kernel
// closes its sockets.
package blocktable

import (
	"context"
	"errors"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
)

// RunPoint is the point of an iteration at which a call runs.
type RunPoint int

// The two points.
const (
	Immediately RunPoint = iota // also during an iteration
	AtBoundary                  // only between two iterations
)

// Engine is the engine whose blocks the table serves.
type Engine interface {
	// Do runs f on the goroutine that drives the scheduler. If the error is nil, f ran to
	// its end, otherwise it never runs: ctx has ended or the engine has stopped.
	Do(ctx context.Context, when RunPoint, f func(*batch.Scheduler)) error
	// NextToken returns the time until the end of the step after the one in progress. It is
	// called within Do.
	NextToken(*batch.Scheduler) time.Duration
	// Leg returns the sequence whose request has this leg name, while its client is
	// connected. It is safe for concurrent use.
	Leg(name string) (*batch.Sequence, bool)
}

// Config configures a Table. All fields but Root are required.
type Config struct {
	Pool   *kv.Pool
	Engine Engine
	// Context is the maximum number of ids of a request.
	Context policies.Tokens
	// Root returns how the prefix cache separates prompts for a model or an adapter, as
	// requests name it, with a cache salt, "" for none. nil: the cache is not shown.
	Root func(model, cacheSalt string) (Root, error)
}

// Root is the Salt, the Adapter and the Origin of a batch.Request.
type Root struct {
	Salt, Adapter uint64
	Origin        batch.Origin
}

// Table is one engine's block table.
type Table struct {
	cfg Config
	// Owned by the loop: accessed only within Engine.Do, and by Adopt.
	reservations map[string]*reservation
	sessions     uint64 // that were opened
}

// Session is what one migrator has made. Its methods are safe for concurrent use.
type Session struct {
	*Table
	id uint64
}

// reservation is a named reservation of a session.
type reservation struct {
	batch.Reservation
	session *Session
}

// New returns a table without sessions.
func New(c Config) (*Table, error) {
	if c.Pool == nil || c.Engine == nil {
		return nil, errors.New("block table: Pool and Engine are required")
	}
	return &Table{cfg: c, reservations: make(map[string]*reservation)}, nil
}

// Open opens a session.
func (t *Table) Open(ctx context.Context) (*Session, error) {
	x := &Session{Table: t}
	return x, t.runOnLoop(ctx, Immediately, func(*batch.Scheduler) error {
		t.sessions++
		x.id = t.sessions
		return nil
	})
}

// ErrUnknown is returned for an unknown reservation.
var ErrUnknown = errors.New("no such reservation")

// Adopt makes a sequence of a reservation: build gets the number of ids and returns the
// request. It must be called on the loop, within Engine.Do. After an error the reservation
// is unchanged.
func (t *Table) Adopt(s *batch.Scheduler, name string, build func(length int) (batch.Request, error)) (*batch.Sequence, error) {
	r := t.reservations[name]
	if r == nil || r.Ended() {
		return nil, ErrUnknown
	}
	q, err := build(r.Length())
	if err != nil {
		return nil, err
	}
	return s.Adopt(&r.Reservation, q)
}

// removeEnded removes the names of ended reservations. It is called before a name is added, so
// that the number of names is bounded by the number of live reservations.
func (t *Table) removeEnded() {
	for name, r := range t.reservations {
		if r.Ended() {
			delete(t.reservations, name)
		}
	}
}

// End releases and thaws everything of the session. It fails only when the engine has stopped, and then nothing is left
// to undo.
func (x *Session) End() {
	_ = x.runOnLoop(context.Background(), Immediately, func(s *batch.Scheduler) error {
		for _, r := range x.reservations {
			if r.session == x {
				s.Release(&r.Reservation)
			}
		}
		x.removeEnded()
		s.ThawAll(x.id)
		return nil
	})
}
