// Package blocks is the client of the block-table protocol of engine/api, with which a
// migrator lists, freezes and adopts requests of its engine.
//
// A Client keeps one session with the engine and starts another when the engine comes back.
// It makes no decisions, and validates every size that the engine sends.
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
//  3. Only Run's end ends a session with a live engine whose Memory is held: right
//     afterwards the blocks may belong to another request.
//  4. An engine stores only blocks of which every region has the checksum that the holder's migrator
//     has computed. Ids, model and cache salt are those of the request, at both ends.
//  5. A block that is read or written is pinned. Whatever fails, it is released after the last byte
//     was written or read: if the engine cannot be reached for long, its session ends, which does it.
//     No release overtakes its pin: a pin is not cancelled with the request, and one that was not
//     answered is released again later.
//  6. Pull returns when its context ends, and does not wait for that release.
//  7. A replica pulls and serves at most MaxConcurrent prefixes at a time each, and refuses others.
package blocks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Names of the engine's sockets.
const (
	blocksSocket = "blocks.sock"
	poolSocket   = "pool.sock"
)

// Timeouts and limits.
const (
	setupTime     = 5 * time.Second // to start a session
	callTime      = 5 * time.Second // for a call without an earlier deadline
	freezeTime    = 20 * time.Second
	thawTime      = time.Second // to undo a failed Freeze
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = 2 * time.Second // between attempts
	maxMessage    = 16 << 20        // bytes; the ids of a million tokens take 3 MB
	maxName       = 256             // bytes of a session's name
)

// Config configures a Client.
type Config struct {
	// Dir is the directory of the engine's sockets. Required. It need not exist yet. A
	// directory that other users may enter, or of another user, is not used.
	Dir string
	// Device maps a pool in device memory. It receives the handle as engine/api specifies
	// it, the descriptor that came with it or nil, which it must close in any case, and
	// the layout. nil rejects such pools.
	Device func(handle []byte, f *os.File, l transport.Layout) (*transport.Memory, error)
	// Logger logs when the engine becomes available or unavailable. nil discards.
	Logger *slog.Logger
}

// Client is the connection to one engine. Its methods are safe for concurrent use; all
// return ErrUnavailable before Run, after it, and while the engine is unavailable.
type Client struct {
	dir    string
	device func(handle []byte, f *os.File, l transport.Layout) (*transport.Memory, error)
	log    *slog.Logger

	mu      sync.Mutex
	current *session // nil: unavailable
}

var _ transport.Pool = (*Client)(nil)

// session is one session with one engine.
type session struct {
	rpc         api.BlocksClient
	id          string
	description Description
	memory      *transport.Memory
	unmapped    chan struct{} // closed when memory is not held any more
	abandoned   chan error    // holds the cause once AbandonSession is called
}

// New returns a client that is not connected yet.
func New(c Config) (*Client, error) {
	if c.Dir == "" {
		return nil, errors.New("engine blocks: Dir is required: the directory of the engine's sockets")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{dir: c.Dir, device: c.Device, log: c.Logger}, nil
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
		away.log(time.Now(), c.log, c.dir, err)
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
	setup := time.AfterFunc(setupTime, func() { cancel(errors.New("the engine did not answer in time")) })
	defer setup.Stop()

	conn, err := c.dial()
	if err != nil {
		return false, err
	}
	defer conn.Close()
	l := &session{rpc: api.NewBlocksClient(conn), unmapped: make(chan struct{}), abandoned: make(chan error, 1)}
	stream, err := l.rpc.Session(ctx, &api.SessionRequest{})
	if err != nil {
		return false, withCause(ctx, err)
	}
	first, err := stream.Recv()
	if err != nil {
		return false, withCause(ctx, err)
	}
	if l.id = first.Session; l.id == "" || len(l.id) > maxName {
		return false, fmt.Errorf("the engine named the session with %d bytes, must have 1 to %d", len(l.id), maxName)
	}
	said, err := l.rpc.Describe(ctx, &api.DescribeRequest{})
	if err != nil {
		return false, withCause(ctx, err)
	}
	if l.description, err = decodeDescription(said); err != nil {
		return false, err
	}
	if l.memory, err = c.receiveMemory(ctx, filepath.Join(c.dir, poolSocket), l.description); err != nil {
		return false, withCause(ctx, err)
	}
	unmap := l.memory.Unmap
	l.memory.Unmap = func() { unmap(); close(l.unmapped) }
	defer l.memory.Close()
	if !setup.Stop() {
		return false, context.Cause(ctx)
	}

	c.setSession(l)
	defer c.setSession(nil)
	var leaving sync.WaitGroup
	defer leaving.Wait()
	defer cancel(nil)
	leaving.Go(func() {
		if why := c.waitAbandoned(ctx, l); why != nil {
			cancel(why)
		}
	})
	c.log.Info("engine block table available", "dir", c.dir, "model", l.description.Model, "blocks", l.description.Layout.Blocks)
	for err == nil { // further replies belong to a later protocol version
		_, err = stream.Recv()
	}
	return true, withCause(ctx, err)
}

// waitAbandoned waits until a session is abandoned and its memory is not held any more. It
// returns the cause, or nil if the session ended before.
func (c *Client) waitAbandoned(ctx context.Context, l *session) error {
	var why error
	select {
	case why = <-l.abandoned:
	case <-ctx.Done():
		return nil
	}
	c.setSession(nil)
	l.memory.Close()
	select {
	case <-l.unmapped:
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
	l := c.currentSession()
	if l == nil {
		return
	}
	select {
	case l.abandoned <- why:
	default:
	}
}

// withCause returns the cause of the session's end, or err.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// dial prepares the one connection of a session. A second one could reach another engine
// process, which does not know the session.
func (c *Client) dial() (*grpc.ClientConn, error) {
	var dialled atomic.Bool
	return grpc.NewClient("passthrough:///engine",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a Unix socket in a private directory
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dialled.Swap(true) {
				return nil, errors.New("the engine closed the connection")
			}
			return unixsocket.Dial(ctx, filepath.Join(c.dir, blocksSocket))
		}),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}

func (c *Client) setSession(l *session) {
	c.mu.Lock()
	c.current = l
	c.mu.Unlock()
}

// currentSession returns the current session, or nil while the engine is unavailable.
func (c *Client) currentSession() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Description returns the description of the engine's pool, or false while the engine is
// unavailable.
func (c *Client) Description() (Description, bool) {
	if l := c.currentSession(); l != nil {
		return l.description, true
	}
	return Description{}, false
}

// Memory returns the engine's pool, mapped for reading and writing, or false while the engine
// is unavailable. It stays mapped while it is held (transport.Hold). After the engine has
// died, other processes do not see what is written there, and an engine that comes back has
// another Memory; write a reservation's blocks only to the Memory that was current when
// Reserve returned.
func (c *Client) Memory() (*transport.Memory, bool) {
	if l := c.currentSession(); l != nil {
		return l.memory, true
	}
	return nil, false
}
