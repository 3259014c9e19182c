// Package connector hands KV over between engines that keep their own caches, over Cascade's
// transports: the migrator's side of a CascadeConnector (engine/api).
//
// An engine asked for a handoff copies the request's blocks into staging memory and offers them here;
// its answer names the offer by a random handle, and this replica. The engine that continues the
// request gives both to its own migrator, which asks this one (Serve) by an RPC between migrators,
// pulls the blocks over the best transport into its own engine's staging memory, verifies their
// checksums, and replies to its engine. Whatever fails, that engine computes the KV itself.
//
// # Invariants
//
//  1. No replica reads an offer but the one that took it, while the lease lasts. It takes it by
//     handle and digest: a handle that was guessed, or that belongs to another text, gives nothing.
//  2. The engine gets the slots of an offer back only after every grant of them was revoked.
//  3. A fetch is reported as done only if every block has the checksum that the holder's engine
//     computed, and after the last write to its slots.
//  4. The holder is resolved by the control plane's view: addresses never come from a request.
package connector

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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
	helloTimeout  = 5 * time.Second
	writeTimeout  = 5 * time.Second  // for a frame: an engine that does not read is disconnected
	frameTimeout  = 10 * time.Second // from the first byte of a frame to its last
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

// Config configures a Client. Self, Dir, Network and Paths are required.
type Config struct {
	// Self is this replica.
	Self policies.ReplicaID
	// Dir is the directory of the engine's socket. It need not exist yet. A directory that other
	// users may enter, or of another user, is not used.
	Dir string
	// Network reaches the other migrators.
	Network Network
	// Paths returns the paths of the transports that serve this Client's Memory. It is called while
	// Run runs.
	Paths func() *transport.Paths
	// Incarnation of this process: of two processes of one replica, the engine serves that with the
	// greater one. 0 means the time of New.
	Incarnation uint64
	// Lease is how long an offer is kept for a reader. 0 means 30 s, as the handoffs assume at least.
	Lease time.Duration
	// Logger logs when the engine becomes available or unavailable, and fetches that fail; nil
	// discards.
	Logger *slog.Logger
}

// Client is the connection to one engine's connector. Its methods are safe for concurrent use.
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
	if c.Self == "" || c.Dir == "" || c.Network == nil || c.Paths == nil {
		return nil, errors.New("KV connector: Self, Dir, Network and Paths are required")
	}
	if c.Lease < 0 {
		return nil, fmt.Errorf("KV connector: Lease %v must not be negative", c.Lease)
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

// KVConnector returns what the front end needs to know of the engine's connector.
func (c *Client) KVConnector() engineinfo.KVConnector {
	s := c.session()
	if s == nil {
		return engineinfo.KVConnector{Presence: engineinfo.Absent, Name: engineinfo.Cascade}
	}
	return engineinfo.KVConnector{Presence: engineinfo.Present, Name: engineinfo.Cascade, Layout: s.fingerprint}.Bounded()
}

// Memory returns the staging memory, or false while the engine is unavailable.
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

// Run keeps a session with the engine until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	pause, logged := minRetryDelay, ""
	for ctx.Err() == nil {
		lived, err := c.runSession(ctx)
		if ctx.Err() != nil {
			break
		}
		if lived {
			pause, logged = minRetryDelay, ""
		}
		if text := fmt.Sprint(err); text != logged { // once per outage and cause
			logged = text
			c.log.Info("engine's KV connector unavailable; its requests migrate by re-prompting", "dir", c.cfg.Dir, "error", err)
		}
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := unixsocket.Dial(ctx, filepath.Join(c.cfg.Dir, api.ConnectorSocket))
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
	defer s.memory.Close()
	defer s.end()
	c.setSession(s)
	defer c.setSession(nil)
	c.log.Info("engine's KV connector available", "dir", c.cfg.Dir, "slots", s.memory.Blocks, "slot_bytes", s.memory.BlockBytes())
	var fetches sync.WaitGroup
	defer fetches.Wait()
	defer cancel()
	return true, c.readFrames(ctx, s, &fetches)
}

// greet sends the hello, and receives the welcome and the staging memory.
func (c *Client) greet(conn *net.UnixConn) (*session, error) {
	hello, err := api.Frame{Hello: &api.Hello{Version: api.ConnectorVersion, Replica: string(c.cfg.Self), Incarnation: c.cfg.Incarnation}}.Append(nil)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	// The descriptor comes with the first byte.
	var head [api.HeadBytes]byte
	rights := make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := conn.ReadMsgUnix(head[:], rights)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return nil, fmt.Errorf("kv.sock: no welcome: %w", err)
	}
	files, err := unixsocket.ParseFiles(rights[:m], "kv-staging")
	if err == nil && (len(files) != 1 || flags&unix.MSG_CTRUNC != 0) {
		err = fmt.Errorf("kv.sock: welcome with %d descriptors, want one", len(files))
	}
	var w api.Frame
	if err == nil {
		_, err = io.ReadFull(conn, head[n:])
	}
	if err == nil {
		w, err = api.ReadBody(conn, head)
	}
	if err == nil && w.Welcome == nil {
		err = fmt.Errorf("kv.sock: the first frame is %s, want welcome", w.Name())
	}
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	layout := transport.Layout{Regions: []transport.Region{{Stride: w.Welcome.SlotBytes, Bytes: w.Welcome.SlotBytes}}, Blocks: w.Welcome.Slots}
	memory, err := transport.MapFile(files[0], layout, layout.MinSize())
	if err != nil {
		return nil, fmt.Errorf("kv.sock: staging memory: %w", err)
	}
	return newSession(conn, w.Welcome.Fingerprint, memory), nil
}

// readFrames handles the engine's frames until the connection ends.
func (c *Client) readFrames(ctx context.Context, s *session, fetches *sync.WaitGroup) error {
	places := make(chan struct{}, maxFetches)
	for {
		f, err := s.read()
		if err != nil {
			return err
		}
		switch {
		case f.Offer != nil:
			c.count(func(n *Stats) { n.Offered++ })
			if err := s.add(*f.Offer, c.cfg.Lease, func() { c.count(func(n *Stats) { n.Expired++ }) }); err != nil {
				return err
			}
		case f.Fetch != nil:
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
