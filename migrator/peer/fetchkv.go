package peer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// FetchKV implements api.PeerServer. Unlike an envelope, a call counts as no evidence that the peer
// is alive: it has streams for that.
func (s *service) FetchKV(q *api.FetchKVRequest, stream api.Peer_FetchKVServer) error {
	n := s.n
	if err := n.checkIdentity(stream.Context(), q.GetFrom()); err != nil {
		return err
	}
	run, err := n.beginFetch(q)
	if err != nil {
		return err
	}
	defer n.endFetch()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(run, cancel)()
	if err := n.cfg.ServeFetch(ctx, policies.ReplicaID(q.GetFrom()), q, stream.Send); err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return nil
}

// beginFetch counts a call, or returns why it is not served. The context is Run's.
func (n *Network) beginFetch(q *api.FetchKVRequest) (context.Context, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ctx == nil:
		return nil, status.Error(codes.Unavailable, "the migrator is not running")
	case n.cfg.ServeFetch == nil:
		return nil, status.Error(codes.Unimplemented, "this replica's engine has no CascadeConnector: set replicas[].connector in the fleet file")
	case policies.ReplicaID(q.GetTo()) != n.cfg.Self:
		return nil, status.Errorf(codes.FailedPrecondition, "this replica is %s, not %q", n.cfg.Self, q.GetTo())
	case n.fetches >= maxFetches:
		return nil, status.Errorf(codes.ResourceExhausted, "%d calls of FetchKV are open", maxFetches)
	}
	n.fetches++
	return n.ctx, nil
}

func (n *Network) endFetch() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fetches--
}

// FetchKV asks a peer, at the address that SetPeers gave, for KV. The KV is kept for this replica
// until ctx ends.
func (n *Network) FetchKV(ctx context.Context, to policies.ReplicaID, q *api.FetchKVRequest) (*api.FetchKVAnswer, error) {
	n.mu.Lock()
	p := n.peers[to]
	if p == nil || p.address == "" {
		n.mu.Unlock()
		return nil, fmt.Errorf("peer %q: not known to the control plane", to)
	}
	address := p.address
	n.mu.Unlock()
	q.From, q.To = string(n.cfg.Self), string(to)
	conn, err := n.dialPeer(p, address)
	if err != nil {
		return nil, fmt.Errorf("peer %s at %s: %w", to, address, err)
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	stream, err := api.NewPeerClient(conn).FetchKV(ctx, q)
	if err == nil {
		var answer *api.FetchKVAnswer
		if answer, err = stream.Recv(); err == nil {
			return answer, nil
		}
	}
	conn.Close()
	if s, ok := status.FromError(err); ok && s.Code() == codes.FailedPrecondition {
		err = errors.New(s.Message())
	}
	return nil, fmt.Errorf("peer %s at %s: %w", to, address, err)
}
