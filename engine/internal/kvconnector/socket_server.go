// Package kvconnector is the emulator's KV connector, by which engines that keep their own caches hand KV over: the
// engine's end of the frames of engine/api.
//
// SocketServer copies the blocks of requests into staging memory for the migrator, and out of it when the migrator has
// fetched some. It has at most one session, with the migrator that connected last. It knows slots and bytes, but
// neither requests nor token ids. Params is how requests and answers name what is handed over.
package kvconnector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// Timeouts and limits.
const (
	helloTimeout = 5 * time.Second  // for a migrator's hello, and to send it the welcome
	writeTimeout = 5 * time.Second  // for a frame: a migrator that does not read is closed
	frameTimeout = 10 * time.Second // from the first byte of a frame to its last
	acceptRetry  = 100 * time.Millisecond
	maxConns     = 16
)

// MaxSocketDir is the maximum length of the directory's path in bytes.
const MaxSocketDir = unixsocket.MaxPath - len("/"+api.ConnectorSocket)

// SocketConfig configures a Server. All fields but Logger are required.
type SocketConfig struct {
	// Dir is the directory of the socket; it is created, for this user only, if it does not exist.
	Dir string
	// Fingerprint is equal for engines that compute equal bytes.
	Fingerprint string
	// Slots is the number of blocks that fit into the staging memory, SlotBytes the size of each.
	Slots, SlotBytes int
	// FetchTimeout bounds a Fetch.
	FetchTimeout time.Duration
	// Logger logs sessions; nil discards.
	Logger *slog.Logger
}

// SocketServer is the socket of one engine. Its methods are safe for concurrent use.
type SocketServer struct {
	cfg SocketConfig
	log *slog.Logger

	mu      sync.Mutex
	current *session // nil: no migrator is connected
}

// ErrNoMigrator is returned while no migrator is connected.
var ErrNoMigrator = errors.New("no migrator is connected to kv.sock")

// NewSocketServer returns a server that serves nothing before Run.
func NewSocketServer(c SocketConfig) (*SocketServer, error) {
	if c.Dir == "" || c.Fingerprint == "" || c.Slots < 1 || c.SlotBytes < 1 || c.FetchTimeout <= 0 {
		return nil, errors.New("kv.sock: Dir, Fingerprint, Slots, SlotBytes and FetchTimeout are required")
	}
	if len(c.Dir) > MaxSocketDir {
		return nil, fmt.Errorf("kv.sock: the directory's path has %d bytes, but a Unix socket allows at most %d: %s", len(c.Dir), MaxSocketDir, c.Dir)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &SocketServer{cfg: c, log: c.Logger}, nil
}

// Run serves migrators until ctx ends, and removes the socket. It may be called once.
func (s *SocketServer) Run(ctx context.Context) error {
	if err := unixsocket.PrepareDir(s.cfg.Dir); err != nil {
		return fmt.Errorf("kv.sock: %w", err)
	}
	l, err := unixsocket.Listen(filepath.Join(s.cfg.Dir, api.ConnectorSocket), s.log)
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
				if err := s.serve(conn); ctx.Err() == nil {
					s.log.Info("migrator's connection ended", "dir", s.cfg.Dir, "error", err)
				}
			})
		default:
			conn.Close()
		}
	}
}

// serve serves one connection until it ends.
func (s *SocketServer) serve(conn *net.UnixConn) error {
	conn.SetDeadline(time.Now().Add(helloTimeout))
	first, err := api.ReadFrame(conn)
	if err != nil {
		return err
	}
	if first.Hello == nil {
		return fmt.Errorf("kv.sock: the first frame is %s, want hello", first.Name())
	}
	pool, err := kv.NewPool(kv.Layout{Blocks: s.cfg.Slots, BlockTokens: 1, SlotBytes: s.cfg.SlotBytes, Regions: 1})
	if err != nil {
		return err
	}
	x := newSession(conn, *first.Hello, pool)
	defer x.close()
	// An offer may be made as soon as the session is the current one; it is sent after the welcome.
	x.writing.Lock()
	err = s.enter(x)
	if err == nil {
		defer s.leave(x)
		err = s.sendWelcome(conn, pool)
	}
	conn.SetDeadline(time.Time{}) // before another writer sets its own
	x.writing.Unlock()
	if err != nil {
		return err
	}
	s.log.Info("migrator connected", "dir", s.cfg.Dir, "replica", x.hello.Replica)
	return x.read()
}

// sendWelcome sends the layout and the descriptor of the staging memory.
func (s *SocketServer) sendWelcome(conn *net.UnixConn, pool *kv.Pool) error {
	_, f, err := pool.Share()
	if err != nil {
		return err
	}
	b, err := api.Frame{Welcome: &api.Welcome{Version: api.ConnectorVersion, Fingerprint: s.cfg.Fingerprint, Slots: s.cfg.Slots, SlotBytes: int64(s.cfg.SlotBytes)}}.Append(nil)
	if err != nil {
		return err
	}
	_, _, err = conn.WriteMsgUnix(b, unix.UnixRights(int(f.Fd())), nil)
	return err
}

// enter makes a session the current one, in place of one of the same migrator or an earlier one.
func (s *SocketServer) enter(x *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.current; old != nil {
		if old.hello.Incarnation > x.hello.Incarnation {
			return fmt.Errorf("kv.sock: a later migrator, of incarnation %d, is connected", old.hello.Incarnation)
		}
		old.conn.Close()
	}
	s.current = x
	return nil
}

func (s *SocketServer) leave(x *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == x {
		s.current = nil
	}
}

func (s *SocketServer) session() (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil {
		return nil, ErrNoMigrator
	}
	return s.current, nil
}

// Replica returns the replica of the migrator that is connected, or false.
func (s *SocketServer) Replica() (string, bool) {
	x, err := s.session()
	if err != nil {
		return "", false
	}
	return x.hello.Replica, true
}

// Offer hands KV over: blocks are its bytes, one block after the other, and are copied. If that is
// not possible, the migrator learns why.
func (s *SocketServer) Offer(handle, digest string, blocks []byte) error {
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
func (s *SocketServer) Fetch(ctx context.Context, w Want) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.FetchTimeout, errors.New("the migrator did not fetch the blocks in time"))
	defer cancel()
	x, err := s.session()
	if err != nil {
		return nil, err
	}
	return x.fetch(ctx, w)
}
