// Package blocks is the migrator's end of the block-table protocol of
// engine/api: through it requests of the engine beside it are read, frozen and
// adopted.
//
// It moves no bytes and decides nothing. It keeps one session with the engine,
// begins another when the engine comes back, and trusts nothing that the engine
// says about sizes before it has checked it. Its invariants:
//
//  1. a call that fails has left nothing reserved or frozen behind for longer
//     than the session lasts,
//  2. a Memory stays readable and writable for whoever holds it, also after the
//     engine has died,
//  3. it ends no session with an engine that lives while anybody holds its
//     Memory, but with Run: the blocks may be another's right after.
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

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Names of the engine's sockets, by the protocol.
const (
	blocksSocket = "blocks.sock"
	poolSocket   = "pool.sock"
)

// Bounds of talking to an engine.
const (
	setupTime     = 5 * time.Second // to begin a session
	callTime      = 5 * time.Second // for a call without a sooner deadline
	freezeTime    = 20 * time.Second
	thawTime      = time.Second // to undo a Freeze that failed
	minRetryDelay = 20 * time.Millisecond
	maxRetryDelay = 2 * time.Second // pause between attempts
	maxMessage    = 16 << 20        // bytes; the ids of a million tokens are 3 MB
	maxName       = 256             // bytes of a session's name
)

// Config says where the engine is.
type Config struct {
	// Dir is the directory of the engine's sockets. Required. It need not exist
	// yet, and only the own user should be able to change it.
	Dir string
	// Device takes over a pool that is in a device's memory: its handle, as engine/api
	// has it, the descriptor that came with it or nil, which is Device's to close
	// whatever it returns, and the layout. nil refuses such pools.
	Device func(handle []byte, f *os.File, l transport.Layout) (*transport.Memory, error)
	// Logger is told when the engine comes and goes, and warned of one that stays
	// away. nil discards.
	Logger *slog.Logger
}

// Client is the way to one engine. Its methods are safe for concurrent use; all
// fail with ErrAway before Run, after it, and while the engine is away.
type Client struct {
	dir    string
	device func(handle []byte, f *os.File, l transport.Layout) (*transport.Memory, error)
	log    *slog.Logger

	mu      sync.Mutex
	current *session // nil: away
}

var _ transport.Pool = (*Client)(nil)

// session is one session with one engine.
type session struct {
	rpc         api.BlocksClient
	id          string
	description Description
	memory      *transport.Memory
	unmapped    chan struct{} // closed when nobody holds memory any more
	abandoned   chan error    // why the session is to end; holds one
}

// New returns a client that has not looked for the engine yet.
func New(c Config) (*Client, error) {
	if c.Dir == "" {
		return nil, errors.New("engine blocks: Dir is required: the directory of the engine's sockets")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Client{dir: c.Dir, device: c.Device, log: c.Logger}, nil
}

// Run keeps a session with the engine until ctx is done. With the session ends
// what it reserved: whoever writes to reserved blocks must have stopped before.
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

// runSession is one session, from its beginning to its end. lived reports whether it
// came to calls.
func (c *Client) runSession(ctx context.Context) (lived bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	setup := time.AfterFunc(setupTime, func() { cancel(errors.New("the engine does not answer")) })
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
		return false, fmt.Errorf("the engine names a session with %d bytes", len(l.id))
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
	c.log.Info("the engine shows its block table", "dir", c.dir, "model", l.description.Model, "blocks", l.description.Layout.Blocks)
	for err == nil { // what else it says belongs to a later protocol
		_, err = stream.Recv()
	}
	return true, withCause(ctx, err)
}

// waitAbandoned waits until a life is abandoned and nobody holds its memory any more. It
// returns why, or nil when the life has ended before.
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

// AbandonSession gives the session up, for an engine that does not do what it must: it
// takes back then what it has reserved and lets go what it has frozen. Until
// nobody holds the Memory any more the engine only counts as away; then the
// session ends, and another one begins. It does nothing while the engine is away,
// and does not block.
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

// withCause is err, or why the session was given up.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// dial prepares the one connection of a life. A second one could reach another
// engine, which knows nothing of the session.
func (c *Client) dial() (*grpc.ClientConn, error) {
	var dialled atomic.Bool
	return grpc.NewClient("passthrough:///engine",
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a Unix socket, in a directory of our own
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if dialled.Swap(true) {
				return nil, errors.New("the engine is gone")
			}
			return (&net.Dialer{Timeout: setupTime}).DialContext(ctx, "unix", filepath.Join(c.dir, blocksSocket))
		}),
		grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
}

func (c *Client) setSession(l *session) {
	c.mu.Lock()
	c.current = l
	c.mu.Unlock()
}

// currentSession is the present life, nil when the engine is away.
func (c *Client) currentSession() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// Description tells what the engine's pool is like, and false while the engine
// is away.
func (c *Client) Description() (Description, bool) {
	if l := c.currentSession(); l != nil {
		return l.description, true
	}
	return Description{}, false
}

// Memory is the engine's pool, mapped for reading and writing, and false while
// the engine is away. Whoever uses its bytes holds it (transport.Hold): then it
// stays mapped. Once the engine has died nobody else sees what is written there,
// and an engine that comes back has another Memory; so a reservation's blocks
// are to be written in the Memory that was there when Reserve answered.
func (c *Client) Memory() (*transport.Memory, bool) {
	if l := c.currentSession(); l != nil {
		return l.memory, true
	}
	return nil, false
}
