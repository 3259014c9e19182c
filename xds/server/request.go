package server

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/cleantext"
)

// Bounds of a node message, in bytes.
const (
	maxNodeID      = 256
	maxTrimmedNode = 4 << 10 // of the part that every stream keeps
)

// request is what the requests of both protocols have.
type request interface {
	proto.Message
	GetNode() *corev3.Node
	GetTypeUrl() string
	GetResponseNonce() string
}

// checkRequest returns an error for a request that is invalid or exceeds a
// limit. It sets node and type of a valid one to those of the stream.
func (g *limitedStream) checkRequest(m any) error {
	r, ok := m.(request)
	if !ok {
		return status.Errorf(codes.Internal, "internal error: request of type %T", m)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now, limits, size := time.Now(), g.server.cfg.Limits, proto.Size(r)
	var node *corev3.Node // nil after the first request: the server has it
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
		return status.Errorf(codes.InvalidArgument, "request of another node on the stream of node %.40q", g.id)
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
	return status.Errorf(codes.ResourceExhausted, "request of %d bytes: the limit is %d", size, most)
}

// bindNode binds the stream to the node of its first request.
func (g *limitedStream) bindNode(n *corev3.Node, now time.Time) error {
	id := n.GetId()
	if id == "" || cleantext.Printable(id, maxNodeID) != id { // terminals and logs show it
		return status.Errorf(codes.InvalidArgument, "node id %.40q: the first request must carry one of 1 to %d printable bytes", id, maxNodeID)
	}
	if size := proto.Size(n); size > maxTrimmedNode {
		return status.Errorf(codes.InvalidArgument, "node %.40q: cluster, locality and user agent have %d bytes: the limit is %d", id, size, maxTrimmedNode)
	}
	account, err := g.server.accounts.addStream(id, now)
	if err == nil {
		g.id, g.node = id, account
		g.timer.Stop()
	}
	return err
}

// resolveType returns the type of a request, which a service of one type may
// leave out.
func (g *limitedStream) resolveType(r request) (string, error) {
	typ := r.GetTypeUrl()
	switch {
	case typ == "" && g.typ != "":
		typ = g.typ
	case typ == "":
		return "", status.Error(codes.InvalidArgument, "type URL is required for ADS")
	case g.typ != "" && typ != g.typ:
		return "", status.Errorf(codes.InvalidArgument, "type %.100q: this service serves only %s", typ, g.typ)
	case !isServed(typ):
		return "", status.Errorf(codes.InvalidArgument, "type %.100q is not served", typ)
	}
	return typ, nil
}

// isReply reports whether a request replies to a response. The server itself
// bounds the number of replies.
func (g *limitedStream) isReply(r request) bool {
	if r.GetResponseNonce() == "" || g.unreplied.Load() <= 0 {
		return false
	}
	g.unreplied.Add(-1)
	return true
}

// applySubscription records the names of a request, and sets its type and its
// trimmed node for the server.
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
	if err := g.node.updateNames(g.counted, now); err != nil {
		return err
	}
	g.counted = now
	return nil
}

// trimNode returns the part of a node message that is kept: an Envoy's has 61
// KB, and the server keeps it for the life of the stream.
func trimNode(n *corev3.Node) *corev3.Node {
	return &corev3.Node{Id: n.GetId(), Cluster: n.GetCluster(), Locality: n.GetLocality(), UserAgentName: n.GetUserAgentName()}
}
