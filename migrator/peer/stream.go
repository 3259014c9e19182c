package peer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// ensureStreamLocked starts keepStream for a peer that is watched or has queued envelopes,
// and wakes it.
func (n *Network) ensureStreamLocked(p *peer) {
	select {
	case p.wake <- struct{}{}:
	default:
	}
	if n.ctx == nil || p.streaming || p.address == "" || !p.watched && len(p.queue) == 0 {
		return
	}
	p.streaming = true
	ctx := n.ctx
	n.wg.Go(func() { n.keepStream(ctx, p) })
}

// keepStream keeps a stream to a peer open while it is needed.
func (n *Network) keepStream(ctx context.Context, p *peer) {
	pause, was := minReconnectDelay, ""
	for {
		up, err := n.runStream(ctx, p)
		if ctx.Err() != nil || err == nil && n.stopStreamIfUnused(p) {
			return
		}
		if up {
			pause = minReconnectDelay
			if was != "" {
				n.log.Info("peer reached again", "peer", string(p.id))
			}
			was = ""
		}
		if err == nil || errors.Is(err, errRedial) || errors.Is(err, errUnread) {
			continue
		}
		// Log once per outage.
		if was == "" {
			n.log.Warn("peer unreachable; retrying", "peer", string(p.id), "error", err)
			was = err.Error()
		}
		if !n.waitToReconnect(ctx, p, pause/2+rand.N(pause/2+1)) {
			return
		}
		pause = min(2*pause, maxReconnectDelay)
	}
}

// waitToReconnect waits before the next attempt, drops expired envelopes, and stops if the
// stream is not needed any more. It returns false when keepStream must return.
func (n *Network) waitToReconnect(ctx context.Context, p *peer, pause time.Duration) bool {
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return false
	}
	n.mu.Lock()
	p.expire(time.Now().Add(-n.cfg.PeerTimeout))
	n.mu.Unlock()
	return !n.stopStreamIfUnused(p)
}

// expire drops envelopes that were queued before a time.
func (p *peer) expire(before time.Time) {
	for len(p.queue) > 0 && p.queue[0].queuedAt.Before(before) {
		p.pop()
	}
}

// stopStreamIfUnused ends keepStream and returns true if the stream is not needed.
func (n *Network) stopStreamIfUnused(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.watched || len(p.queue) > 0 {
		return false
	}
	p.streaming = false
	n.removeIfUnusedLocked(p)
	return true
}

// errRedial ends a stream to a peer that has a new address.
var errRedial = errors.New("the peer's address has changed")

// outgoing is an open stream to a peer.
type outgoing struct {
	conn   *grpc.ClientConn
	stream api.Peer_ExchangeClient
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when its reader has ended
	err    error         // why the reader ended; set before done is closed
}

// runStream runs one stream to a peer, from connecting to its end. It returns nil when the
// stream was idle for IdleTimeout and the peer is not watched, and when the stream must
// switch to another process. up reports whether the peer answered.
func (n *Network) runStream(run context.Context, p *peer) (up bool, err error) {
	ctx, cancel := context.WithCancelCause(run)
	n.mu.Lock()
	address := p.address
	p.cancelStream = cancel
	n.mu.Unlock()

	o, greeted, err := n.openStream(ctx, cancel, p, address)
	if err != nil {
		cancel(nil)
		n.endStream(p, nil, err)
		return false, withCause(ctx, err)
	}
	// Envelopes sent before the peer's Hello would be lost if it rejects the stream.
	select {
	case <-greeted:
		err = n.sendQueued(ctx, p, o.stream)
		up = true
	case <-time.After(helloTimeout):
		err = fmt.Errorf("peer %s at %s: no Hello within %v", p.id, address, helloTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if errors.Is(err, errSuperseded) {
		n.endStream(p, o, nil)
		return true, nil
	}
	cancel(nil)
	<-o.done
	o.conn.Close()
	err = withCause(ctx, err)
	n.endStream(p, nil, err)
	return up, err
}

// openStream opens a stream and sends Hello. greeted is closed when the peer's Hello arrives.
func (n *Network) openStream(ctx context.Context, cancel context.CancelCauseFunc, p *peer, address string) (_ *outgoing, greeted <-chan struct{}, err error) {
	conn, err := n.dialPeer(p, address)
	if err != nil {
		return nil, nil, fmt.Errorf("peer %s at %s: %w", p.id, address, err)
	}
	stream, err := api.NewPeerClient(conn).Exchange(ctx)
	if err == nil {
		err = stream.Send(n.newEnvelope(p, &api.Envelope_Hello{Hello: n.hello()}))
	}
	if err != nil {
		cancel(nil)
		conn.Close()
		return nil, nil, fmt.Errorf("peer %s at %s: %w", p.id, address, err)
	}
	// The reader cancels the context when the stream ends, which also ends a Send that
	// is blocked by a peer that does not read.
	o := &outgoing{conn: conn, stream: stream, cancel: cancel, done: make(chan struct{})}
	came := make(chan struct{})
	go func() {
		defer close(o.done)
		o.err = n.readReplies(p, stream, came)
		cancel(fmt.Errorf("peer %s at %s: %w", p.id, address, o.err))
	}()
	return o, came, nil
}

// withCause returns the cause of ctx's end, if it has one of its own, else err.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// dialPeer prepares one connection. gRPC dials when the stream opens; its own reconnects
// are not used: a stream has one connection.
func (n *Network) dialPeer(p *peer, address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(n.cfg.Credentials(p.id, address)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			c, err := n.cfg.Dial(ctx, address)
			n.recordDial(p, err)
			return c, err
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(), grpc.WithIdleTimeout(0),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveEvery, Timeout: keepaliveAnswer}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(MaxEnvelope), grpc.MaxCallRecvMsgSize(MaxEnvelope)),
	)
}

// recordDial counts refused connections: no process listens at the peer's address. A
// peer that this process has no resources to dial is not judged.
func (n *Network) recordDial(p *peer, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.localFault = localfault.Is(err)
	switch {
	case err == nil:
		p.refusals = 0
	case errors.Is(err, syscall.ECONNREFUSED):
		p.refusals++
		if p.refusals >= refusalsUntilGone {
			n.wakeLiveness()
		}
	}
}

// readReplies receives the peer's Hello, closes greeted, and receives replies to
// Heartbeats until the stream ends.
func (n *Network) readReplies(p *peer, stream api.Peer_ExchangeClient, greeted chan struct{}) error {
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		h, from := e.GetHello(), policies.ReplicaID(e.GetFrom())
		switch {
		case h != nil && from != p.id:
			return fmt.Errorf("replica %q answered; the address has been reused", from)
		case h != nil && greeted != nil:
			n.mu.Lock()
			n.recordHelloLocked(p, h)
			p.connected, p.reached, p.knownAtConnect = true, h.GetIncarnation(), p.hello.GetIncarnation()
			n.mu.Unlock()
			close(greeted)
			greeted = nil
		case e.GetHeartbeat() != nil && from == p.id && greeted == nil:
			n.handleHeartbeatReply(p)
		default: // from a later version
		}
	}
}

// sendQueued sends queued envelopes in order until ctx ends, the stream must switch to
// another process, or the peer is not watched and IdleTimeout has passed without one.
func (n *Network) sendQueued(ctx context.Context, p *peer, stream api.Peer_ExchangeClient) error {
	idle := time.NewTimer(n.cfg.IdleTimeout)
	defer idle.Stop()
	again := time.NewTimer(maxReconnectDelay)
	defer again.Stop()
	for {
		if n.superseded(p) {
			return errSuperseded
		}
		switch e := n.nextEnvelope(p); {
		case e != nil:
			if err := stream.Send(e); err != nil {
				<-ctx.Done() // the reader records the cause
				return err
			}
			idle.Reset(n.cfg.IdleTimeout)
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return ctx.Err()
		case <-again.C:
			if n.reachedPredecessor(p) {
				return errSuperseded
			}
			again.Reset(maxReconnectDelay)
		case <-idle.C:
			if n.unused(p) {
				return nil
			}
			idle.Reset(n.cfg.IdleTimeout)
		}
	}
}

// nextEnvelope dequeues the oldest envelope that has not expired, or returns nil.
func (n *Network) nextEnvelope(p *peer) *api.Envelope {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(p.queue) == 0 {
		return nil
	}
	p.expire(time.Now().Add(-n.cfg.PeerTimeout))
	if len(p.queue) == 0 {
		return nil
	}
	return p.pop().envelope
}

func (n *Network) unused(p *peer) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !p.watched && len(p.queue) == 0
}

// newEnvelope returns an envelope with a Hello.
func (n *Network) newEnvelope(p *peer, hello *api.Envelope_Hello) *api.Envelope {
	return &api.Envelope{From: string(n.cfg.Self), To: string(p.id), Body: hello}
}
