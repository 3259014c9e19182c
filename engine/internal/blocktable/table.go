// Package blocktable serves the emulator's block table to the migrator: the protocol of
// engine/api, over two Unix sockets.
//
// Package batch decides about sequences and blocks, on the loop's goroutine; this package
// keeps the sessions of the clients and the names of reservations.
//
// Invariant: when a session ends, for whatever reason, everything made under its name is
// undone, except what a request has adopted.
//
// A session ends when its call does, and not earlier: there is no keepalive. A suspended
// client that resumes may still be writing to blocks that it reserved, which must not belong
// to another request then. The death of a client is noticed at once, because the kernel
// closes its sockets.
package blocktable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/policies"
)

// Names of the sockets in the directory.
const (
	BlocksSocket = "blocks.sock"
	PoolSocket   = "pool.sock"
)

// MaxDir is the maximum length of the directory's path in bytes.
const MaxDir = unixsocket.MaxPath - len("/"+BlocksSocket)

// MaxName bounds the name of a leg or a reservation, in bytes.
const MaxName = 256

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

// Config configures a Table. All fields but Logger are required.
type Config struct {
	// Dir is the directory of the sockets; it is created, for this user only, if it does not
	// exist.
	Dir    string
	Pool   *kv.Pool // must stay open until Run has returned
	Engine Engine
	Model  string
	// Context is the maximum number of ids of a request.
	Context policies.Tokens
	// TokenBytes is the number of bytes per token that a link has to carry.
	TokenBytes policies.Bytes
	// Root returns how the prefix cache separates prompts for a model or an adapter, as
	// requests name it, with a cache salt, "" for none. nil: the cache is not shown.
	Root func(model, cacheSalt string) (Root, error)
	// Logger logs rejected clients. nil discards.
	Logger *slog.Logger
}

// Root is the Salt, the Adapter and the Origin of a batch.Request.
type Root struct {
	Salt, Adapter uint64
	Origin        batch.Origin
}

// Table is one engine's block table.
type Table struct {
	api.UnimplementedBlocksServer
	cfg         Config
	description *api.Description

	// Owned by the loop: accessed only within Engine.Do, and by Adopt.
	sessions     map[uint64]bool
	reservations map[string]*reservation
}

// reservation is a named reservation of a session.
type reservation struct {
	batch.Reservation
	session uint64
}

// New returns a table that serves nothing before Run.
func New(c Config) (*Table, error) {
	switch {
	case c.Pool == nil || c.Engine == nil || c.Dir == "":
		return nil, errors.New("block table: Dir, Pool and Engine are required")
	case len(c.Dir) > MaxDir:
		return nil, fmt.Errorf("block table: the directory's path has %d bytes, but a Unix socket allows at most %d: %s", len(c.Dir), MaxDir, c.Dir)
	case c.Pool.BlockBytes()%c.Pool.Regions != 0:
		return nil, fmt.Errorf("block table: blocks of %d bytes cannot be divided into %d regions", c.Pool.BlockBytes(), c.Pool.Regions)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Table{
		cfg: c, description: describe(c),
		sessions: make(map[uint64]bool), reservations: make(map[string]*reservation),
	}, nil
}

// describe sets the reply of Describe, which never changes.
func describe(c Config) *api.Description {
	l := c.Pool.Layout
	d := &api.Description{
		Model: c.Model, BlockTokens: uint32(l.BlockTokens), Blocks: uint32(l.Blocks),
		PoolBytes: uint64(l.Bytes()), TokenBytes: uint64(c.TokenBytes),
		// Without the number of blocks: pools of any size can read each other's blocks.
		Fingerprint: xxhash.Sum64String(strconv.Quote(c.Model) + fmt.Sprint(" ", l.BlockTokens, l.SlotBytes, l.Regions)),
	}
	for r := range l.Regions {
		g := l.Region(r)
		d.Regions = append(d.Regions, &api.Region{Offset: uint64(g.Offset), Stride: uint64(g.Stride), Bytes: uint64(g.Bytes)})
	}
	return d
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

// endSession releases and thaws everything of a session.
func (t *Table) endSession(s *batch.Scheduler, session uint64) {
	delete(t.sessions, session)
	for _, r := range t.reservations {
		if r.session == session {
			s.Release(&r.Reservation)
		}
	}
	t.removeEnded()
	s.ThawAll(session)
}
