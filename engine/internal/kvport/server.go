// Package kvport is the emulator's end of kv.sock (engine/api), by which KV blocks get out of an engine and into it.
//
// An engine that shows the table of its blocks gives migrators its cache's memory and answers their calls (package
// blocktable). One that keeps its own cache, as vLLM does, copies the blocks of requests into staging memory for the
// migrator, and out of it when the migrator has fetched some: it has at most one session, with the migrator that
// connected last, and knows slots and bytes, but neither requests nor token ids. Params is how requests and answers name
// what is handed over.
package kvport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// Timeouts and limits.
const (
	helloTimeout = 5 * time.Second // for a migrator's hello, and to send it the welcome
	acceptRetry  = 100 * time.Millisecond
	maxConns     = 16
)

// MaxDir is the maximum length of the directory's path in bytes.
const MaxDir = unixsocket.MaxPath - len("/"+api.Socket)

// Config configures a Server. Dir and Fingerprint are required.
type Config struct {
	// Dir is the directory of the socket; it is created, for this user only, if it does not exist.
	Dir string
	// Fingerprint is equal for engines that compute equal bytes.
	Fingerprint string

	// Table is that of an engine that shows it, Pool its memory, and Describe what the welcome says of it. nil: the engine
	// keeps its own cache.
	Table    *blocktable.Table
	Pool     *kv.Pool // must stay open until Run has returned
	Describe api.Table

	// Slots is the number of blocks that fit into the staging memory, SlotBytes the size of each.
	// They are required without a Table.
	Slots, SlotBytes int
	// FetchTimeout bounds a Fetch. It is required without a Table.
	FetchTimeout time.Duration

	// Logger logs sessions; nil discards.
	Logger *slog.Logger
}

// Server is the socket of one engine. Its methods are safe for concurrent use.
type Server struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	current *staging // nil: no migrator is connected to an engine without a Table
}

// ErrNoMigrator is returned while no migrator is connected.
var ErrNoMigrator = errors.New("no migrator is connected to kv.sock")

// New returns a server that serves nothing before Run.
func New(c Config) (*Server, error) {
	switch {
	case c.Dir == "" || c.Fingerprint == "":
		return nil, errors.New("kv.sock: Dir and Fingerprint are required")
	case c.Table != nil && c.Pool == nil:
		return nil, errors.New("kv.sock: a Table needs its Pool")
	case c.Table == nil && (c.Slots < 1 || c.SlotBytes < 1 || c.FetchTimeout <= 0):
		return nil, errors.New("kv.sock: Slots, SlotBytes and FetchTimeout are required without a Table")
	case len(c.Dir) > MaxDir:
		return nil, fmt.Errorf("kv.sock: the directory's path has %d bytes, but a Unix socket allows at most %d: %s", len(c.Dir), MaxDir, c.Dir)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{cfg: c, log: c.Logger}, nil
}

// Run serves migrators until ctx ends, and removes the socket. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	if err := unixsocket.PrepareDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("kv.sock: %w", err)
	}
	l, err := unixsocket.Listen(filepath.Join(s.cfg.Dir, api.Socket), s.log)
	if err != nil {
		return fmt.Errorf("kv.sock: %w", err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var conns sync.WaitGroup
	defer conns.Wait()
	places := make(chan struct{}, maxConns)
	for {
		conn, err := l.AcceptUser()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				conn.Close()
			}
			return nil
		case err != nil: // out of descriptors, for instance
			s.log.Warn("accepting a migrator failed", "error", err)
			select {
			case <-time.After(acceptRetry):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case places <- struct{}{}:
			conns.Go(func() {
				defer func() { <-places }()
				defer conn.Close()
				defer context.AfterFunc(ctx, func() { conn.Close() })()
				if err := s.serve(ctx, conn); ctx.Err() == nil {
					s.log.Info("migrator's connection ended", "dir", s.cfg.Dir, "error", err)
				}
			})
		default:
			conn.Close()
		}
	}
}

// serve serves one connection until it ends.
func (s *Server) serve(ctx context.Context, conn *net.UnixConn) error {
	conn.SetDeadline(time.Now().Add(helloTimeout))
	first, err := api.ReadFrame(conn)
	if err != nil {
		return err
	}
	if first.Hello == nil {
		return fmt.Errorf("kv.sock: the first frame is %s, want hello", first.Name())
	}
	if s.cfg.Table != nil {
		if err := s.sendWelcome(conn, s.cfg.Pool, &s.cfg.Describe); err != nil {
			return err
		}
		conn.SetDeadline(time.Time{})
		return serveTable(ctx, s.cfg.Table, api.NewConn(conn))
	}
	pool, err := kv.NewPool(kv.Layout{Blocks: s.cfg.Slots, BlockTokens: 1, SlotBytes: s.cfg.SlotBytes, Regions: 1})
	if err != nil {
		return err
	}
	x := newStaging(api.NewConn(conn), *first.Hello, pool)
	defer x.close()
	if err := s.enter(x); err != nil {
		return err
	}
	defer s.leave(x)
	s.log.Info("migrator connected", "dir", s.cfg.Dir, "replica", x.hello.Replica)
	return x.read()
}

// sendWelcome sends the layout of a pool and what gives access to it.
func (s *Server) sendWelcome(conn *net.UnixConn, pool *kv.Pool, table *api.Table) error {
	cuda, f, err := pool.Share()
	if err != nil {
		return err
	}
	w := api.Welcome{Version: api.Version, Fingerprint: s.cfg.Fingerprint, Ranks: pool.Regions, Blocks: pool.Blocks, Table: table,
		Handles: []api.Handle{{Kind: api.Memfd, Bytes: int64(pool.Bytes())}}}
	if cuda != nil {
		w.Handles[0].Kind, w.Handles[0].CUDA, w.Handles[0].Descriptor = api.CUDA, cuda, f != nil
		if f != nil {
			defer f.Close()
		}
	}
	for r := range pool.Regions {
		g := pool.Region(r)
		w.Regions = append(w.Regions, api.Region{Rank: r, Offset: int64(g.Offset), Stride: int64(g.Stride), Bytes: int64(g.Bytes)})
	}
	b, err := api.Frame{Welcome: &w}.Append(nil)
	if err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(b, rights(f), nil)
	return err
}

// rights returns the control message that carries a file, nil for none.
func rights(f *os.File) []byte {
	if f == nil {
		return nil
	}
	return unix.UnixRights(int(f.Fd()))
}

// enter makes a session the current one, in place of one of the same migrator or an earlier one, and sends it the welcome.
func (s *Server) enter(x *staging) error {
	s.mu.Lock() // no offer comes before the welcome
	defer s.mu.Unlock()
	if old := s.current; old != nil {
		if old.hello.Incarnation > x.hello.Incarnation {
			return fmt.Errorf("kv.sock: a later migrator, of incarnation %d, is connected", old.hello.Incarnation)
		}
		old.conn.Close()
	}
	if err := s.sendWelcome(x.conn.UnixConn, x.pool, nil); err != nil {
		return err
	}
	x.conn.SetDeadline(time.Time{})
	s.current = x
	return nil
}

func (s *Server) leave(x *staging) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == x {
		s.current = nil
	}
}

func (s *Server) session() (*staging, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil, ErrNoMigrator
	}
	return s.current, nil
}

// Replica returns the replica of the migrator that is connected, or false.
func (s *Server) Replica() (string, bool) {
	x, err := s.session()
	if err != nil {
		return "", false
	}
	return x.hello.Replica, true
}

// Offer hands KV over: blocks are its bytes, one block after the other, and are copied. If that is
// not possible, the migrator learns why.
func (s *Server) Offer(handle, digest string, blocks []byte) error {
	x, err := s.session()
	if err != nil {
		return err
	}
	return x.offer(handle, digest, blocks)
}

// Want names KV of another engine: the blocks of an offer from First on.
type Want struct {
	Holder, Handle, Digest string
	First, Blocks          int
}

// Fetch returns the bytes of the blocks, one after the other.
func (s *Server) Fetch(ctx context.Context, w Want) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.FetchTimeout, errors.New("the migrator did not fetch the blocks in time"))
	defer cancel()
	x, err := s.session()
	if err != nil {
		return nil, err
	}
	return x.fetch(ctx, w)
}
