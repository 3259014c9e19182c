package emulator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/internal/blocktable"
	"github.com/cascadeinfer/cascade/engine/internal/kvconnector"
)

// KVTransfer configures an engine's KV connector, which emulates vLLM's NixlConnector with
// kv_load_failure_policy "recompute".
type KVTransfer struct {
	// Listener is the side channel, from which other engines read KV without authentication: it
	// belongs on loopback or a network of engines only. Its address is given to other engines,
	// and must be that of a TCP port. Required; Run closes it.
	Listener net.Listener
	// Dial connects to other engines' side channels. nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// EngineID is the engine's name on the side channel. "" is a new name for every process, which
	// others need after a restart: see kvconnector.Agents.
	EngineID string
	// Lease is how long the blocks of a handoff are kept for a reader. 0 means 30 s. It is never
	// extended: vLLM does that while the request waits at the reader.
	Lease time.Duration
	// HandshakeTimeout bounds the first contact with another engine, and the notification that a pull
	// has ended. 0 means 5 s.
	HandshakeTimeout time.Duration
}

func (c KVTransfer) withDefaults() KVTransfer {
	c.EngineID = cmp.Or(c.EngineID, rand.Text())
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.HandshakeTimeout = cmp.Or(c.HandshakeTimeout, 5*time.Second)
	if c.Dial == nil {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	return c
}

// address returns where other engines reach the side channel.
func (c KVTransfer) address() (host string, port int, err error) {
	host, text, err := net.SplitHostPort(c.Listener.Addr().String())
	if err == nil {
		port, err = strconv.Atoi(text)
	}
	if err == nil && (host == "" || port < 1 || port > math.MaxUint16) {
		err = errors.New("no host or no port")
	}
	if err != nil {
		return "", 0, fmt.Errorf("the Listener's address %q is not that of a TCP port, which other engines connect to: %w", c.Listener.Addr(), err)
	}
	return host, port, nil
}

// transfer is an engine's KV connector. Every method does nothing on nil.
type transfer struct {
	engine *Engine
	cfg    KVTransfer
	host   string // of the side channel
	port   int
	agents kvconnector.Agents
	socket *kvconnector.SocketServer // instead of all of these but engine, with Config.KVSocket
	group  *errgroup.Group           // of Run

	// Owned by the loop.
	leases map[string]*lease // by request
}

// lease keeps the blocks of a request that has ended.
type lease struct {
	sequence *batch.Sequence
	end      *time.Timer
}

// newTransfer returns the connector of an engine, nil if it has none.
func newTransfer(e *Engine) (*transfer, error) {
	if e.cfg.KVSocket != nil {
		return newSocketTransfer(e)
	}
	if e.cfg.KVTransfer == nil {
		return nil, nil
	}
	c := *e.cfg.KVTransfer
	host, port, _ := c.address() // validated
	return &transfer{
		engine: e, cfg: c, host: host, port: port, leases: make(map[string]*lease),
		agents: kvconnector.Agents{Dial: c.Dial, HandshakeTimeout: c.HandshakeTimeout},
	}, nil
}

// prepare sets what a request's kv_transfer_params mean for its stream.
func (t *transfer) prepare(q *request, st *stream, id string) {
	if t == nil {
		return
	}
	if t.socket != nil {
		t.prepareHandle(q, st)
		return
	}
	if q.transfer.Complete() {
		st.remote = &q.transfer
	}
	if q.transfer.RemoteDecode && !st.faults.NoTransferParams {
		st.handoffID = id + "-0-" + rand.Text()[:8]
	}
}

// serve runs the side channel until ctx ends.
func (t *transfer) serve(ctx context.Context) error {
	if t.socket != nil {
		return t.socket.Run(ctx)
	}
	server := kvconnector.TransferServer{
		EngineID:   t.cfg.EngineID,
		BlockBytes: t.engine.cfg.layout().BlockBytes(),
		Read: func(ctx context.Context, blocks []int) (bytes []byte, err error) {
			err = errors.Join(t.engine.do(ctx, blocktable.Immediately, func(s *batch.Scheduler) { bytes, err = s.ReadBlocks(blocks) }), err)
			return bytes, err
		},
		Done: func(ctx context.Context, request string) {
			_ = t.engine.do(ctx, blocktable.Immediately, func(s *batch.Scheduler) {
				if !t.release(s, request) {
					t.engine.metrics.transfer.lateReads.Inc()
				}
			})
		},
	}
	return server.Serve(ctx, t.cfg.Listener)
}

// grant keeps the blocks of a stream that ends, for the lease, and describes them. It runs on the
// loop.
func (t *transfer) grant(st *stream) *kvconnector.Params {
	if t.socket != nil {
		return t.grantHandle(st)
	}
	q := st.sequence
	p := &kvconnector.Params{
		EngineID: t.cfg.EngineID, RequestID: st.handoffID, Host: t.host, Port: t.port, Tokens: q.Length() - 1 + st.faults.TransferTokens,
	}
	for _, b := range q.Pinned() {
		p.Blocks = append(p.Blocks, int(b))
	}
	duration := cmp.Or(time.Duration(st.faults.LeaseSeconds*float64(time.Second)), t.cfg.Lease)
	t.leases[st.handoffID] = &lease{sequence: q, end: time.AfterFunc(duration, func() {
		_ = t.engine.do(context.Background(), blocktable.Immediately, func(s *batch.Scheduler) { t.expire(s, st.handoffID) })
	})}
	return p
}

// expire frees the blocks of a request whose lease has ended. It runs on the loop.
func (t *transfer) expire(s *batch.Scheduler, request string) {
	if t.release(s, request) {
		t.engine.metrics.transfer.expired.Inc()
	}
}

// expireAll ends all leases. It runs on the loop.
func (t *transfer) expireAll(s *batch.Scheduler) {
	if t == nil {
		return
	}
	for request := range t.leases {
		t.expire(s, request)
	}
}

// release frees the blocks of a request. It returns false if they are not kept.
func (t *transfer) release(s *batch.Scheduler, request string) bool {
	l := t.leases[request]
	if l == nil {
		return false
	}
	delete(t.leases, request)
	l.end.Stop()
	s.Unpin(l.sequence)
	return true
}

// errFewerBlocks is the assertion with which vLLM's engine core dies.
var errFewerBlocks = errors.New("engine core died: assert num_decode_blocks <= len(prefill_group)")

// startPulls starts the pulls of a step. It runs on the loop; an error ends the engine.
func (t *transfer) startPulls(ctx context.Context, loads []batch.Load) error {
	for _, load := range loads {
		st := load.Sequence.Receiver.(*stream)
		if t.socket != nil {
			t.startFetch(ctx, st, load)
			continue
		}
		theirs := st.remote.Blocks
		if load.Blocks > len(theirs) {
			return fmt.Errorf("request of %d tokens, of which %d blocks are to be loaded from %d: %w", load.Sequence.Length(), load.Blocks, len(theirs), errFewerBlocks)
		}
		// What is in the prefix cache is taken to be the first blocks.
		theirs = theirs[len(theirs)-load.Blocks:]
		ctx, cancel := context.WithCancel(ctx)
		st.stopPull = cancel
		t.group.Go(func() error {
			defer cancel()
			t.pull(ctx, st.remote, theirs, load)
			return nil
		})
	}
	return nil
}

// pull loads blocks from another engine and ends the load.
func (t *transfer) pull(ctx context.Context, p *kvconnector.Params, blocks []int, load batch.Load) {
	layout, m := t.engine.cfg.layout(), t.engine.metrics.transfer
	begun := time.Now()
	bytes, err := t.agents.Pull(ctx, p, blocks, layout.BlockBytes())
	if err == nil {
		m.succeeded(time.Since(begun), len(bytes), len(blocks))
	} else if ctx.Err() == nil {
		m.failed.Inc()
		t.engine.cfg.Logger.Warn("KV load failed; the prompt is computed here", "request", p.RequestID, "engine", p.EngineID, "cause", err)
	}
	t.endLoad(ctx, load, bytes, err)
}

// endLoad ends a load with the bytes of its blocks, unless there was an error.
func (t *transfer) endLoad(ctx context.Context, load batch.Load, bytes []byte, err error) {
	var loaded *batch.Loaded
	if err == nil {
		loaded = load.Read(bytes, t.engine.cfg.layout().SlotBytes)
	}
	// The load ends also if the client is gone; if the engine is, so are its blocks.
	_ = t.engine.do(context.WithoutCancel(ctx), blocktable.Immediately, func(s *batch.Scheduler) { s.EndLoad(load, loaded) })
}
