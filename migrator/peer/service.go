package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// service implements the gRPC service of a Network.
type service struct {
	api.UnimplementedPeerServer
	n *Network
}

// incoming is a stream that a peer has opened.
type incoming struct {
	end            chan struct{} // closed when a newer stream of the same process replaces it
	once           sync.Once
	heartbeatReply chan *api.Envelope // for the reply stream
}

func newIncoming() *incoming {
	return &incoming{end: make(chan struct{}), heartbeatReply: make(chan *api.Envelope, 1)}
}

func (in *incoming) close() { in.once.Do(func() { close(in.end) }) }

// Exchange implements api.PeerServer. A gRPC handler cannot cancel its own Recv, so a
// goroutine reads the stream; it ends soon after Exchange.
func (s *service) Exchange(stream api.Peer_ExchangeServer) error {
	n := s.n
	n.mu.Lock()
	switch {
	case n.ctx == nil:
		n.mu.Unlock()
		return status.Error(codes.Unavailable, "the migrator is not running")
	case n.incoming >= maxIncoming:
		n.mu.Unlock()
		n.log.Warn("stream of peer refused: too many are open", "limit", maxIncoming)
		return status.Errorf(codes.ResourceExhausted, "too many streams of peers: %d are open", maxIncoming)
	}
	n.incoming++
	stopped := n.ctx.Done()
	in := newIncoming()
	greeted, ended := make(chan struct{}), make(chan error, 1)
	n.wg.Go(func() {
		ended <- n.read(stream, in, greeted)
		n.mu.Lock()
		n.incoming--
		n.mu.Unlock()
	})
	n.mu.Unlock()

	late := time.NewTimer(helloTimeout)
	defer late.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-greeted:
			greeted = nil
			late.Stop()
		case e := <-in.heartbeatReply: // after the Hello, which the goroutine that reads has sent
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-late.C:
			return status.Errorf(codes.DeadlineExceeded, "no Hello within %v", helloTimeout)
		case <-in.end:
			return status.Error(codes.Aborted, "replaced by a later stream of the same process")
		case <-stopped:
			return status.Error(codes.Aborted, "the migrator is stopping")
		}
	}
}

// read receives the envelopes of a stream until it ends.
func (n *Network) read(stream api.Peer_ExchangeServer, in *incoming, greeted chan<- struct{}) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if err := n.checkIdentity(stream.Context(), first.GetFrom()); err != nil {
		return err
	}
	p, err := n.acceptHello(first, in)
	if err != nil {
		return err
	}
	close(greeted)
	h := first.GetHello()
	defer n.endIncoming(p, h.GetIncarnation(), in)
	if err := stream.Send(n.newEnvelope(p, &api.Envelope_Hello{Hello: n.hello()})); err != nil {
		return err
	}
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if n.acceptEnvelope(p, e, in) {
			n.cfg.Handle(p.id, e)
		}
	}
}

// checkIdentity returns an error if the certificate of a stream is not that of the sender
// which its Hello or its request names. Such a stream is rejected before it has any effect: no
// peer is recorded, counted as alive or replaced.
func (n *Network) checkIdentity(ctx context.Context, from string) error {
	if n.cfg.TrustDomain == "" {
		return nil
	}
	var err error
	if from == "" || len(from) > maxNameBytes {
		err = fmt.Errorf("invalid Hello: replica name has %d bytes, must have 1 to %d", len(from), maxNameBytes)
	} else if _, err = (identity.Matcher{TrustDomain: n.cfg.TrustDomain, Role: identity.Migrator, Name: from}).CheckCertificate(identity.PeerCertificate(ctx)); err == nil {
		return nil
	}
	n.log.Warn("stream of peer rejected", "error", err)
	return status.Error(codes.PermissionDenied, err.Error())
}

// acceptHello records a Hello. A process has one stream: a newer one replaces an older one,
// which may be a dead connection.
func (n *Network) acceptHello(e *api.Envelope, in *incoming) (*peer, error) {
	from, h := policies.ReplicaID(e.GetFrom()), e.GetHello()
	var why error
	switch {
	case h == nil:
		why = errors.New("the first envelope of a stream must be a Hello")
	case from == "" || from == n.cfg.Self:
		why = fmt.Errorf("Hello from %q: every replica needs a unique name", from)
	case policies.ReplicaID(e.GetTo()) != n.cfg.Self:
		why = fmt.Errorf("this replica is %s, not %q", n.cfg.Self, e.GetTo())
	}
	if why != nil {
		return nil, status.Error(codes.FailedPrecondition, why.Error())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.peerLocked(from)
	if old := p.streams[h.GetIncarnation()]; old != nil {
		old.close()
	}
	n.recordHelloLocked(p, h)
	p.streams[h.GetIncarnation()] = in
	return p, nil
}

// recordHelloLocked records the process that a Hello names.
func (n *Network) recordHelloLocked(p *peer, h *api.Hello) {
	p.recordHeard(time.Now())
	p.refusals = 0
	if p.hello != nil && h.GetIncarnation() < p.hello.GetIncarnation() {
		return
	}
	if p.hello != nil && h.GetIncarnation() > p.hello.GetIncarnation() {
		n.handleSuccessorLocked(p)
	}
	n.recordAliveLocked(p)
	if h.GetTransferMax() < TransferMin || h.GetTransferMin() > TransferMax {
		n.log.Warn("peer supports no common transfer version; requests migrate to and from it by re-prompting",
			"peer", string(p.id), "least", h.GetTransferMin(), "most", h.GetTransferMax())
	}
	p.hello = h
}

// endIncoming records the end of a stream.
func (n *Network) endIncoming(p *peer, incarnation uint64, in *incoming) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.streams[incarnation] == in {
		delete(p.streams, incarnation)
	}
	if p.refusals >= refusalsUntilGone {
		n.wakeLiveness()
	}
	n.removeIfUnusedLocked(p)
}

// acceptEnvelope validates an envelope and reports whether it is for Handle.
func (n *Network) acceptEnvelope(p *peer, e *api.Envelope, in *incoming) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-in.end: // the later stream receives it too
		return false
	default:
	}
	if n.ctx == nil || policies.ReplicaID(e.GetFrom()) != p.id || policies.ReplicaID(e.GetTo()) != n.cfg.Self {
		return false
	}
	n.recordAliveLocked(p)
	switch e.GetBody().(type) {
	case *api.Envelope_Heartbeat:
		n.replyToHeartbeat(p, in)
		return false
	case nil, *api.Envelope_Hello:
		return false
	}
	return true
}
