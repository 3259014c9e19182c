package peer

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// FetchKV implements api.PeerServer. Unlike an envelope, a call counts as no evidence that the peer
// is alive: it has streams for that.
func (s *service) FetchKV(q *api.FetchKVRequest, stream api.Peer_FetchKVServer) error {
	const hint = "this replica's engine has no CascadeConnector: set replicas[].connector in the fleet file"
	return serveCall(s.n, stream, q, s.n.cfg.ServeFetch, hint)
}

// FetchPrefix implements api.PeerServer, like FetchKV.
func (s *service) FetchPrefix(q *api.FetchPrefixRequest, stream api.Peer_FetchPrefixServer) error {
	return serveCall(s.n, stream, q, s.n.cfg.ServePrefix, "this replica's engine serves no block table")
}

// fetchRequest is a request for KV, which names its two replicas.
type fetchRequest interface {
	GetFrom() string
	GetTo() string
}

// serveCall serves a call with serve, whose context ends with the call and with Run. An error that
// has no code of its own is a refusal. Without serve the call is rejected with a hint.
func serveCall[Q fetchRequest, A any](n *Network, stream grpc.ServerStreamingServer[A], q Q, serve func(context.Context, policies.ReplicaID, Q, func(*A) error) error, hint string) error {
	if err := n.checkIdentity(stream.Context(), q.GetFrom()); err != nil {
		return err
	}
	if serve == nil {
		return status.Error(codes.Unimplemented, hint)
	}
	run, err := n.beginFetch(q.GetTo())
	if err != nil {
		return err
	}
	defer n.endFetch()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(run, cancel)()
	err = serve(ctx, policies.ReplicaID(q.GetFrom()), q, stream.Send)
	if _, coded := status.FromError(err); !coded {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return err
}

// beginFetch counts a call for a replica, or returns why it is not served. The context is Run's.
func (n *Network) beginFetch(to string) (context.Context, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.ctx == nil:
		return nil, status.Error(codes.Unavailable, "the migrator is not running")
	case policies.ReplicaID(to) != n.cfg.Self:
		return nil, status.Errorf(codes.FailedPrecondition, "this replica is %s, not %q", n.cfg.Self, to)
	case n.fetches >= maxFetches:
		return nil, status.Errorf(codes.ResourceExhausted, "%d calls of peers that fetch KV are open", maxFetches)
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
	q.From, q.To = string(n.cfg.Self), string(to)
	return fetch(ctx, n, to, func(c api.PeerClient) (grpc.ServerStreamingClient[api.FetchKVAnswer], error) {
		return c.FetchKV(ctx, q)
	})
}

// FetchPrefix asks a peer, like FetchKV, for what its engine has cached of a prefix. The blocks are
// kept for this replica until ctx ends. The error has the code of the peer's answer.
func (n *Network) FetchPrefix(ctx context.Context, to policies.ReplicaID, q *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error) {
	q.From, q.To = string(n.cfg.Self), string(to)
	return fetch(ctx, n, to, func(c api.PeerClient) (grpc.ServerStreamingClient[api.FetchPrefixAnswer], error) {
		return c.FetchPrefix(ctx, q)
	})
}

// fetch makes a call on a connection of its own, which lasts as long as ctx, and returns its answer.
func fetch[A any](ctx context.Context, n *Network, to policies.ReplicaID, call func(api.PeerClient) (grpc.ServerStreamingClient[A], error)) (*A, error) {
	n.mu.Lock()
	p := n.peers[to]
	if p == nil || p.address == "" {
		n.mu.Unlock()
		return nil, fmt.Errorf("peer %q: not known to the control plane", to)
	}
	address := p.address
	n.mu.Unlock()
	conn, err := n.dialPeer(p, address)
	if err != nil {
		return nil, fmt.Errorf("peer %s at %s: %w", to, address, err)
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	stream, err := call(api.NewPeerClient(conn))
	if err == nil {
		var answer *A
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
