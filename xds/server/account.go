package server

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// forgetAfter is how long a node without streams is remembered, so that coming back
// does not give it a fresh burst.
const forgetAfter = time.Minute

// nodeAccounts are the nodes that have streams, or had some lately.
type nodeAccounts struct {
	limits Limits

	mu    sync.Mutex
	known map[string]*nodeAccount
}

func newNodeAccounts(l Limits) *nodeAccounts {
	return &nodeAccounts{limits: l, known: make(map[string]*nodeAccount)}
}

// nodeAccount is what one node costs, whatever streams it has.
type nodeAccount struct {
	limits Limits

	mu      sync.Mutex
	streams int
	names   nameCount
	// paidUntil is until when the node's requests so far are paid for, at the rate
	// of one per tick: the time by which a bucket of tokens would be full.
	paidUntil     time.Time
	lastStreamEnd time.Time // of its last stream's end
}

// addStream counts a new stream of a node.
func (ns *nodeAccounts) addStream(id string, now time.Time) (*nodeAccount, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	n := ns.known[id]
	if n == nil {
		if len(ns.known) >= ns.limits.Nodes {
			ns.forgetIdleLocked(now)
		}
		if len(ns.known) >= ns.limits.Nodes {
			return nil, status.Errorf(codes.ResourceExhausted, "there are %d nodes already, and %.40q is one more", ns.limits.Nodes, id)
		}
		n = &nodeAccount{limits: ns.limits}
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

// forgetIdleLocked forgets the nodes that are gone for long.
func (ns *nodeAccounts) forgetIdleLocked(now time.Time) {
	for id, n := range ns.known {
		n.mu.Lock()
		if n.streams == 0 && now.Sub(n.lastStreamEnd) >= forgetAfter {
			delete(ns.known, id)
		}
		n.mu.Unlock()
	}
}

// removeStream ends a stream that subscribed to some names.
func (n *nodeAccount) removeStream(names nameCount, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.streams--
	n.names.names -= names.names
	n.names.bytes -= names.bytes
	n.lastStreamEnd = now
}

// chargeRequest takes a request that nobody asked for out of the node's allowance.
func (n *nodeAccount) chargeRequest(now time.Time) error {
	tick := time.Second / time.Duration(n.limits.Rate)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paidUntil.Before(now) {
		n.paidUntil = now
	}
	if n.paidUntil.Sub(now)+tick > time.Duration(n.limits.Burst)*tick {
		return status.Errorf(codes.ResourceExhausted, "the node makes more than %d requests a second", n.limits.Rate)
	}
	n.paidUntil = n.paidUntil.Add(tick)
	return nil
}

// updateNames changes the names that the node subscribes to: those of a stream were so
// many until now, and are so many from now on.
func (n *nodeAccount) updateNames(until, from nameCount) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	names, bytes := n.names.names+from.names-until.names, n.names.bytes+from.bytes-until.bytes
	switch {
	case from.names > until.names && names > n.limits.NodeNames:
		return status.Errorf(codes.ResourceExhausted, "the node subscribes to more than %d names", n.limits.NodeNames)
	case from.bytes > until.bytes && bytes > n.limits.NodeBytes:
		return status.Errorf(codes.ResourceExhausted, "the names that the node subscribes to have more than %d bytes", n.limits.NodeBytes)
	}
	n.names = nameCount{names, bytes}
	return nil
}
