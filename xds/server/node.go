package server

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// forget is how long a node without streams is remembered, so that coming back
// does not give it a fresh burst.
const forget = time.Minute

// nodes are the nodes that have streams, or had some lately.
type nodes struct {
	limits Limits

	mu    sync.Mutex
	known map[string]*node
}

func newNodes(l Limits) *nodes { return &nodes{limits: l, known: make(map[string]*node)} }

// node is what one node costs, whatever streams it has.
type node struct {
	limits Limits

	mu      sync.Mutex
	streams int
	names   size
	// paid is until when the node's requests so far are paid for, at the rate
	// of one per tick: the time by which a bucket of tokens would be full.
	paid time.Time
	left time.Time // of its last stream's end
}

// enter counts a new stream of a node.
func (ns *nodes) enter(id string, now time.Time) (*node, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.known[id]
	if n == nil {
		if len(ns.known) >= ns.limits.Nodes {
			ns.sweepLocked(now)
		}
		if len(ns.known) >= ns.limits.Nodes {
			return nil, status.Errorf(codes.ResourceExhausted, "there are %d nodes already, and %.40q is one more", ns.limits.Nodes, id)
		}
		n = &node{limits: ns.limits}
		ns.known[id] = n
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams >= ns.limits.Streams {
		return nil, status.Errorf(codes.ResourceExhausted, "node %.40q has %d streams already", id, ns.limits.Streams)
	}
	n.streams++
	return n, nil
}

// sweepLocked forgets the nodes that are gone for long.
func (ns *nodes) sweepLocked(now time.Time) {
	for id, n := range ns.known {
		n.mu.Lock()
		if n.streams == 0 && now.Sub(n.left) >= forget {
			delete(ns.known, id)
		}
		n.mu.Unlock()
	}
}

// leave ends a stream that subscribed to some names.
func (n *node) leave(names size, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.streams--
	n.names.names -= names.names
	n.names.bytes -= names.bytes
	n.left = now
}

// pay takes a request that nobody asked for out of the node's allowance.
func (n *node) pay(now time.Time) error {
	tick := time.Second / time.Duration(n.limits.Rate)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paid.Before(now) {
		n.paid = now
	}
	if n.paid.Sub(now)+tick > time.Duration(n.limits.Burst)*tick {
		return status.Errorf(codes.ResourceExhausted, "the node makes more than %d requests a second", n.limits.Rate)
	}
	n.paid = n.paid.Add(tick)
	return nil
}

// want changes the names that the node subscribes to: those of a stream were so
// many until now, and are so many from now on.
func (n *node) want(until, from size) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	names, bytes := n.names.names+from.names-until.names, n.names.bytes+from.bytes-until.bytes
	switch {
	case from.names > until.names && names > n.limits.NodeNames:
		return status.Errorf(codes.ResourceExhausted, "the node subscribes to more than %d names", n.limits.NodeNames)
	case from.bytes > until.bytes && bytes > n.limits.NodeBytes:
		return status.Errorf(codes.ResourceExhausted, "the names that the node subscribes to have more than %d bytes", n.limits.NodeBytes)
	}
	n.names = size{names, bytes}
	return nil
}
