// Package kvport is the migrator's end of kv.sock (engine/api): it gets KV blocks out of the engine beside it and into
// it, and lists, freezes and adopts the requests of an engine that shows the table of its blocks.
//
// A Client keeps one session with the engine and starts another when the engine comes back.
// It makes no decisions, and validates every size that the engine sends.
//
// An engine without a table that is asked for a handoff copies the request's blocks into staging memory and offers them
// here; its answer names the offer by a random handle, and this replica. The engine that continues the request gives
// both to its own migrator, which asks this one (Serve) by an RPC between migrators, pulls the blocks over the best
// transport into its own engine's staging memory, verifies their checksums, and replies to its engine. Whatever
// fails, that engine computes the KV itself.
//
// A Copier copies the KV of prompts' beginnings from the prefix cache of one engine into that of another, before a
// request's first token. Its Pull is called at the replica where the request will run: the engine pins what it has of the
// prefix and reserves blocks for the rest, the peer that holds the prefix pins its own blocks and offers them (Serve), and
// the blocks are pulled, verified and stored in the engine's prefix cache. The caller knows who holds a prefix, and
// whether a pull pays.
//
// Invariants:
//
//  1. A failed call leaves nothing reserved or frozen for longer than the session lasts.
//  2. A Memory stays readable and writable while it is held, even after the engine has died.
//  3. Only Run's end ends a session with a live engine that shows its table and whose Memory is held: right
//     afterwards the blocks may belong to another request.
//  4. An engine stores only blocks of which every region has the checksum that the holder's migrator, or engine,
//     has computed. Ids, model and cache salt are those of the request, at both ends.
//  5. A block that is read or written is pinned. Whatever fails, it is released after the last byte
//     was written or read: if the engine cannot be reached for long, its session ends, which does it.
//     No release overtakes its pin: a pin is not cancelled with the request, and one that was not
//     answered is released again later.
//  6. Pull returns when its context ends, and does not wait for that release.
//  7. A replica pulls and serves at most MaxConcurrent prefixes at a time each, and refuses others.
//  8. No replica reads an offer but the one that took it, while the lease lasts. It takes it by
//     handle and digest: a handle that was guessed, or that belongs to another text, gives nothing.
//  9. The engine gets the blocks of an offer back only after every grant of them was revoked, and a fetch is reported as
//     done after the last write to its blocks.
//  10. The holder is resolved by the control plane's view: addresses never come from a request.
package kvport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
	wire "github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/handoff"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Timeouts and limits.
const (
	helloTimeout  = 5 * time.Second // to start a session
	callTime      = 5 * time.Second // for a call without an earlier deadline
	freezeTime    = 20 * time.Second
	thawTime      = time.Second // to undo a failed Freeze
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = 2 * time.Second // between attempts to connect

	// fetchTimeout bounds a fetch; the front end gives the leg up at handoff.Deadline.
	fetchTimeout = 10 * time.Second
	maxFetches   = 256  // at a time
	maxOffers    = 1024 // open at a time; further ones are released at once
)

// Network reaches the other migrators; migrator/peer implements it.
type Network interface {
	// FetchKV asks a peer for KV, which the peer keeps until ctx ends.
	FetchKV(ctx context.Context, to policies.ReplicaID, q *wire.FetchKVRequest) (*wire.FetchKVAnswer, error)
}

// Config configures a Client. Self and Dir are required.
type Config struct {
	// Self is this replica.
	Self policies.ReplicaID
	// Dir is the directory of kv.sock. It need not exist yet. A directory that other users may enter, or of another
	// user, is not used.
	Dir string
	// Device maps memory of a device. It receives the handle as engine/api specifies it, the descriptor that came with it
	// or nil, which it must close in any case, and the layout. nil refuses such memory.
	Device func(handle []byte, f *os.File, l transport.Layout) (*transport.Memory, error)
	// Incarnation of this process: of two processes of one replica, an engine without a table serves that with the
	// greater one. 0 means the time of New.
	Incarnation uint64

	// Network reaches the other migrators. nil refuses engines that show no table.
	Network Network
	// Paths returns the paths of the transports that serve this Client's Memory. It is called while
	// Run runs, and required with a Network.
	Paths func() *transport.Paths
	// Lease is how long an offer is kept for a reader. 0 means 30 s, as the handoffs assume at least.
	Lease time.Duration

	// Logger logs when the engine becomes available or unavailable, and fetches that fail; nil discards.
	Logger *slog.Logger
}

// Client is the connection to one engine. Its methods are safe for concurrent use; calls return
// ErrUnavailable before Run, after it, and while the engine is unavailable.
type Client struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	current *session // nil: unavailable
	stats   Stats
}

var _ transport.Pool = (*Client)(nil)

// Stats counts what became of handoffs, since New.
type Stats struct {
	Offered  uint64 // offers of this engine
	Taken    uint64 // of these, by another replica
	Expired  uint64 // of these, when the lease ended before, or too many were open
	Fetched  uint64 // fetches of this engine that have succeeded
	Failed   uint64 // fetches that have not; the engine computes the KV
	Corrupt  uint64 // blocks that arrived without their checksum, and were pulled again or given up
	Sessions uint64 // connections to the engine
}

// New returns a client that is not connected yet.
func New(c Config) (*Client, error) {
	switch {
	case c.Self == "" || c.Dir == "":
		return nil, errors.New("KV port: Self and Dir are required")
	case c.Network != nil && c.Paths == nil:
		return nil, errors.New("KV port: Paths is required with a Network")
	}
	if c.Lease == 0 {
		c.Lease = handoff.Lease
	}
	if c.Incarnation == 0 {
		c.Incarnation = uint64(time.Now().UnixMicro())
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{cfg: c, log: c.Logger}, nil
}

// KVConnector returns what the front end needs to know of the engine's connector: an engine that shows its table has
// none.
func (c *Client) KVConnector() engineinfo.KVConnector {
	switch s := c.session(); {
	case s == nil:
		return engineinfo.KVConnector{Presence: engineinfo.Absent, Name: engineinfo.Cascade}
	case s.table != nil:
		return engineinfo.KVConnector{Presence: engineinfo.Absent}
	default:
		return engineinfo.KVConnector{Presence: engineinfo.Present, Name: engineinfo.Cascade, Layout: s.fingerprint}.Bounded()
	}
}

// Description returns the description of the engine's cache, or false while the engine is unavailable or if it shows no
// table.
func (c *Client) Description() (Description, bool) {
	if s := c.session(); s != nil && s.table != nil {
		return *s.table, true
	}
	return Description{}, false
}

// Memory returns the memory that the engine shares, mapped for reading and writing, or false while the engine
// is unavailable. It stays mapped while it is held (transport.Hold). After the engine has
// died, other processes do not see what is written there, and an engine that comes back has
// another Memory; write a reservation's blocks only to the Memory that was current when
// Reserve returned.
func (c *Client) Memory() (*transport.Memory, bool) {
	if s := c.session(); s != nil {
		return s.memory, true
	}
	return nil, false
}

// Stats returns the counters.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Client) count(f func(*Stats)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.stats)
}

// session returns the current session, or nil while the engine is unavailable.
func (c *Client) session() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

func (c *Client) setSession(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current = s; s != nil {
		c.stats.Sessions++
	}
}

// Run keeps a session with the engine until ctx ends. The end of a session releases its
// reservations: their blocks must not be written any more.
func (c *Client) Run(ctx context.Context) error {
	pause := minRetryDelay
	var away outage
	for ctx.Err() == nil {
		lived, err := c.runSession(ctx)
		if ctx.Err() != nil {
			break
		}
		if lived {
			pause, away = minRetryDelay, outage{}
		}
		away.log(time.Now(), c.log, c.cfg.Dir, err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, maxRetryDelay)
	}
	return nil
}

// runSession runs one session to its end. lived reports whether it became usable.
func (c *Client) runSession(ctx context.Context) (lived bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := unixsocket.Dial(ctx, filepath.Join(c.cfg.Dir, api.Socket))
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(helloTimeout))
	s, err := c.greet(conn)
	if err != nil {
		return false, err
	}
	conn.SetDeadline(time.Time{})
	unmap := s.memory.Unmap
	s.memory.Unmap = func() { unmap(); close(s.unmapped) }
	defer s.memory.Close()
	defer s.end()

	c.setSession(s)
	defer c.setSession(nil)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel(nil)
	work.Go(func() {
		if why := c.waitAbandoned(ctx, s); why != nil {
			cancel(why)
		}
	})
	c.log.Info("engine's KV port available", "dir", c.cfg.Dir, "blocks", s.memory.Blocks, "block_bytes", s.memory.BlockBytes(), "table", s.table != nil)
	err = c.readFrames(ctx, s, &work)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return true, err
}

// waitAbandoned waits until a session is abandoned and its memory is not held any more. It
// returns the cause, or nil if the session ended before.
func (c *Client) waitAbandoned(ctx context.Context, s *session) error {
	var why error
	select {
	case why = <-s.abandoned:
	case <-ctx.Done():
		return nil
	}
	c.setSession(nil)
	s.memory.Close()
	select {
	case <-s.unmapped:
		return why
	case <-ctx.Done():
		return nil
	}
}

// AbandonSession ends the session, for an engine that fails calls which must succeed: it then
// frees what it has reserved and thaws what it has frozen. While Memory is held, the engine
// only counts as unavailable; then the session ends and another one starts. It does nothing
// while the engine is unavailable, and does not block.
func (c *Client) AbandonSession(why error) {
	s := c.session()
	if s == nil {
		return
	}
	select {
	case s.abandoned <- why:
	default:
	}
}

// greet sends the hello, and receives the welcome and the memory.
func (c *Client) greet(conn *net.UnixConn) (*session, error) {
	hello, err := api.Frame{Hello: &api.Hello{Version: api.Version, Replica: string(c.cfg.Self), Incarnation: c.cfg.Incarnation}}.Append(nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	w, files, err := receiveWelcome(conn)
	if err == nil && w.Table == nil && c.cfg.Network == nil {
		err = errors.New("kv.sock: the engine shows no table of its blocks")
	}
	if err != nil {
		closeFiles(files)
		return nil, err
	}
	memory, err := c.mapMemory(w, files)
	if err != nil {
		return nil, fmt.Errorf("kv.sock: the engine's memory: %w", err)
	}
	return newSession(api.NewConn(conn), w, memory), nil
}

// receiveWelcome returns the first frame and the files that came with it, which the caller closes also after an error.
func receiveWelcome(conn *net.UnixConn) (*api.Welcome, []*os.File, error) {
	// The descriptors come with the first byte.
	first, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4*api.MaxHandles))
	_, m, flags, _, err := conn.ReadMsgUnix(first, rights)
	if err != nil {
		return nil, nil, fmt.Errorf("kv.sock: no welcome: %w", err)
	}
	files, err := unixsocket.ParseFiles(rights[:m], "kv-memory")
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("kv.sock: more than %d descriptors came with the welcome, or too many are open", api.MaxHandles)
	}
	if err != nil {
		return nil, files, err
	}
	f, err := api.ReadFrame(io.MultiReader(bytes.NewReader(first), conn))
	switch {
	case err != nil:
	case f.Welcome == nil:
		err = fmt.Errorf("kv.sock: the first frame is %s, want welcome", f.Name())
	default:
		want := 0
		for _, h := range f.Welcome.Handles {
			if h.HasDescriptor() {
				want++
			}
		}
		if len(files) != want {
			err = fmt.Errorf("kv.sock: welcome with %d descriptors, want %d", len(files), want)
		}
	}
	return f.Welcome, files, err
}

// readFrames handles the engine's frames until the connection ends.
func (c *Client) readFrames(ctx context.Context, s *session, fetches *sync.WaitGroup) error {
	places := make(chan struct{}, maxFetches)
	for {
		f, err := s.conn.Read()
		if err != nil {
			return err
		}
		switch {
		case f.Answer != nil && s.table != nil:
			s.conn.Deliver(f.Answer)
		case f.Offer != nil && s.table == nil:
			c.count(func(n *Stats) { n.Offered++ })
			if err := s.add(*f.Offer, c.cfg.Lease, func() { c.count(func(n *Stats) { n.Expired++ }) }); err != nil {
				return err
			}
		case f.Fetch != nil && s.table == nil:
			select {
			case places <- struct{}{}:
				fetches.Go(func() {
					defer func() { <-places }()
					c.runFetch(ctx, s, *f.Fetch)
				})
			default:
				s.reply(f.Fetch.ID, fmt.Errorf("%d fetches are in progress", maxFetches))
			}
		default:
			return fmt.Errorf("kv.sock: unexpected %s", f.Name())
		}
	}
}
