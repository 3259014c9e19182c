package server

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Bounds of a node message, in bytes.
const (
	maxNodeID      = 256
	maxTrimmedNode = 4 << 10 // of what is kept of it, with every stream
)

// request is what the requests of both protocols have.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetResponseNonce() string
}

// checkRequest says why a request does not pass. The node and the type of one that
// does are those of the stream.
func (g *limitedStream) checkRequest(m any) error {
	r, ok := m.(request)
	if !ok {
		return status.Errorf(codes.Internal, "internal error: a request is a %T", m)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, limits, size := time.Now(), g.server.cfg.Limits, proto.Size(r)
	var node *corev3.Node // of later requests, what the server knows
	switch first := g.node == nil; {
	case first && size > limits.FirstRequest:
		return tooLarge(size, limits.FirstRequest)
	case first:
		node = trimNode(r.GetNode())
		if err := g.bindNode(node, now); err != nil {
			return err
		}
	case size > limits.Request:
		return tooLarge(size, limits.Request)
	case r.GetNode() != nil && r.GetNode().GetId() != g.id:
		return status.Errorf(codes.InvalidArgument, "the stream belongs to node %.40q, and a request names another", g.id)
	}
	typ, err := g.resolveType(r)
	if err != nil {
		return err
	}
	if !g.isReply(r) {
		if err := g.node.chargeRequest(now); err != nil {
			return err
		}
	}
	return g.applySubscription(typ, node, r)
}

func tooLarge(size, most int) error {
	return status.Errorf(codes.ResourceExhausted, "a request of %d bytes, where %d is the most", size, most)
}

// bindNode binds the stream to the node of its first request.
func (g *limitedStream) bindNode(n *corev3.Node, now time.Time) error {
	id := n.GetId()
	if id == "" || len(id) > maxNodeID {
		return status.Errorf(codes.InvalidArgument, "node id %.40q: the first request must carry one of 1 to %d bytes", id, maxNodeID)
	}
	if size := proto.Size(n); size > maxTrimmedNode {
		return status.Errorf(codes.InvalidArgument, "node %.40q: its cluster, locality and user agent have %d bytes, where %d are the most", id, size, maxTrimmedNode)
	}
	account, err := g.server.accounts.addStream(id, now)
	if err == nil {
		g.id, g.node = id, account
		g.timer.Stop()
	}
	return err
}

// resolveType returns the type of a request, which a service of one type may leave
// out.
func (g *limitedStream) resolveType(r request) (string, error) {
	typ := r.GetTypeUrl()
	switch {
	case typ == "" && g.typ != "":
		typ = g.typ
	case typ == "":
		return "", status.Error(codes.InvalidArgument, "type URL is required for ADS")
	case g.typ != "" && typ != g.typ:
		return "", status.Errorf(codes.InvalidArgument, "type %.100q: this service serves %s", typ, g.typ)
	case !isServed(typ):
		return "", status.Errorf(codes.InvalidArgument, "type %.100q is not served", typ)
	}
	return typ, nil
}

// isReply reports whether a request answers a response. Such requests are as many
// as the server makes them.
func (g *limitedStream) isReply(r request) bool {
	if r.GetResponseNonce() == "" || g.unreplied.Load() <= 0 {
		return false
	}
	g.unreplied.Add(-1)
	return true
}

// applySubscription follows the names of a request, and gives those behind the guards
// its type and the node as far as they may read it.
func (g *limitedStream) applySubscription(typ string, node *corev3.Node, m request) error {
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		r.TypeUrl, r.Node = typ, node
		g.subscriptions.applyDelta(typ, r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe())
	case *discoveryv3.DiscoveryRequest:
		r.TypeUrl, r.Node = typ, node
		g.subscriptions.applySotW(typ, r.GetResourceNames())
	}
	now := g.subscriptions.size()
	if most := g.server.cfg.Limits.StreamNames; now.names > most {
		return status.Errorf(codes.ResourceExhausted, "the stream subscribes to more than %d names", most)
	}
	if err := g.node.updateNames(g.counted, now); err != nil {
		return err
	}
	g.counted = now
	return nil
}

// trimNode is what is kept of a node message: an Envoy's has 61 KB, and the server
// keeps it as long as the stream.
func trimNode(n *corev3.Node) *corev3.Node {
	return &corev3.Node{Id: n.GetId(), Cluster: n.GetCluster(), Locality: n.GetLocality(), UserAgentName: n.GetUserAgentName()}
}
