// Package blocktable serves the emulator's block table to the process that moves
// requests: the protocol of engine/api, over two Unix sockets.
//
// It decides nothing about sequences and blocks; package batch does, on the
// loop's goroutine. What it keeps is the books of who asked: sessions, and the
// names of reservations. Its invariant: when a session ends, for whatever
// reason, nothing that was made under its name is left but what a request has
// adopted.
//
// A session ends when its call does, and no sooner: there is no keepalive. A
// client that is stopped for a while and goes on may still be writing to blocks
// that it reserved, and must not find them in other hands; one that dies is
// noticed at once, because the kernel closes its sockets.
package blocktable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cespare/xxhash/v2"
)

// Names of the sockets in the directory.
const (
	BlocksSocket = "blocks.sock"
	PoolSocket   = "pool.sock"
)

// MaxDir is the longest path of the directory, in bytes: the paths of Unix
// sockets end at 104 bytes on some systems.
const MaxDir = 103 - len("/"+BlocksSocket)

// MaxName bounds the name of a leg or a reservation, in bytes.
const MaxName = 256

// When says at which point of an iteration a call runs.
type When int

// The two points.
const (
	AtOnce     When = iota // also while an iteration's time passes
	AtBoundary             // only between two iterations
)

// Engine is what the table is of.
type Engine interface {
	// Do runs f on the goroutine that drives the scheduler. A nil error says that
	// it ran to its end, any other that it never ran and never will: ctx is done,
	// or the engine has stopped.
	Do(ctx context.Context, when When, f func(*batch.Scheduler)) error
	// Leg returns the sequence that a client's header has named so, while the
	// client is there. Safe for concurrent use.
	Leg(name string) (*batch.Sequence, bool)
}

// Config says what is served. All fields but Logger are required.
type Config struct {
	// Dir is where the sockets are made; it is created, for the own user only, if
	// it does not exist.
	Dir    string
	Pool   *kv.Pool // must stay open until Run has returned
	Engine Engine
	Model  string
	// Context is the largest number of ids of a request.
	Context policies.Tokens
	// TokenBytes is what a link has to carry per token.
	TokenBytes policies.Bytes
	// Logger is told of clients that are turned away. nil discards.
	Logger *slog.Logger
}

// Table is one engine's block table.
type Table struct {
	api.UnimplementedBlocksServer
	cfg         Config
	description *api.Description

	// Owned by the loop: touched within Engine.Do only, and by Adopt.
	sessions     map[uint64]bool
	reservations map[string]*reservation
}

// reservation is one that a session has named.
type reservation struct {
	batch.Reservation
	session uint64
}

// New returns a table that nobody can reach until Run runs.
func New(c Config) (*Table, error) {
	switch {
	case c.Pool == nil || c.Engine == nil || c.Dir == "":
		return nil, errors.New("block table: Dir, Pool and Engine are required")
	case len(c.Dir) > MaxDir:
		return nil, fmt.Errorf("block table: the directory's path has %d bytes, at most %d fit a Unix socket's: %s", len(c.Dir), MaxDir, c.Dir)
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

// describe writes down what never changes.
func describe(c Config) *api.Description {
	l := c.Pool.Layout
	d := &api.Description{
		Model: c.Model, BlockTokens: uint32(l.BlockTokens), Blocks: uint32(l.Blocks),
		PoolBytes: uint64(l.Bytes()), TokenBytes: uint64(c.TokenBytes),
		// The number of blocks is left out: pools of any size read each other.
		Fingerprint: xxhash.Sum64String(strconv.Quote(c.Model) + fmt.Sprint(" ", l.BlockTokens, l.SlotBytes, l.Regions)),
	}
	for r := range l.Regions {
		g := l.Region(r)
		d.Regions = append(d.Regions, &api.Region{Offset: uint64(g.Offset), Stride: uint64(g.Stride), Bytes: uint64(g.Bytes)})
	}
	return d
}

// ErrUnknown says that there is no reservation of a name.
var ErrUnknown = errors.New("no such reservation")

// Adopt makes a sequence of the reservation of that name: build is told how many
// ids it has, and says what is asked for. It must be called on the loop, within
// Engine.Do. What it refuses stays reserved.
func (t *Table) Adopt(s *batch.Scheduler, name string, build func(length int) (batch.Request, error)) (*batch.Sequence, error) {
	r := t.reservations[name]
	if r == nil || r.Over() {
		return nil, ErrUnknown
	}
	q, err := build(r.Length())
	if err != nil {
		return nil, err
	}
	return s.Adopt(&r.Reservation, q)
}

// sweep forgets the names of reservations that are over. It is called before a
// name is added, so that what is kept is bounded by what lives.
func (t *Table) sweep() {
	for name, r := range t.reservations {
		if r.Over() {
			delete(t.reservations, name)
		}
	}
}

// end takes back what a session holds.
func (t *Table) end(s *batch.Scheduler, session uint64) {
	delete(t.sessions, session)
	for _, r := range t.reservations {
		if r.session == session {
			s.Release(&r.Reservation)
		}
	}
	t.sweep()
	s.ThawAll(session)
}
