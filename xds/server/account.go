package server

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// forgetAfter is how long a node without streams is remembered, so that a
// reconnect does not give it a fresh burst.
const forgetAfter = time.Minute

// nodeAccounts holds the nodes that have streams or lately had some.
type nodeAccounts struct {
	limits Limits

	mu    sync.Mutex
	known map[string]*nodeAccount
}

func newNodeAccounts(l Limits) *nodeAccounts {
	return &nodeAccounts{limits: l, known: make(map[string]*nodeAccount)}
}

// nodeAccount is what one node uses of its limits, over all its streams.
type nodeAccount struct {
	limits Limits

	mu      sync.Mutex
	streams int
	names   nameCount
	// paidUntil is the time until which the node's requests so far are paid
	// for, at one per tick: the time at which a token bucket would be full.
	paidUntil     time.Time
	lastStreamEnd time.Time
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
			return nil, status.Errorf(codes.ResourceExhausted, "node %.40q: the limit of %d nodes is reached", id, ns.limits.Nodes)
		}
		n = &nodeAccount{limits: ns.limits}
		ns.known[id] = n
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams >= ns.limits.Streams {
		return nil, status.Errorf(codes.ResourceExhausted, "node %.40q: the limit of %d streams is reached", id, ns.limits.Streams)
	}
	n.streams++
	return n, nil
}

// forgetIdleLocked forgets nodes that have had no stream for forgetAfter.
func (ns *nodeAccounts) forgetIdleLocked(now time.Time) {
	for id, n := range ns.known {
		n.mu.Lock()
		if n.streams == 0 && now.Sub(n.lastStreamEnd) >= forgetAfter {
			delete(ns.known, id)
		}
		n.mu.Unlock()
	}
}

// removeStream removes a stream that subscribed to some names.
func (n *nodeAccount) removeStream(names nameCount, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.streams--
	n.names.names -= names.names
	n.names.bytes -= names.bytes
	n.lastStreamEnd = now
}

// chargeRequest takes an unsolicited request out of the node's rate limit.
func (n *nodeAccount) chargeRequest(now time.Time) error {
	tick := time.Second / time.Duration(n.limits.Rate)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.paidUntil.Before(now) {
		n.paidUntil = now
	}
	if n.paidUntil.Sub(now)+tick > time.Duration(n.limits.Burst)*tick {
		return status.Errorf(codes.ResourceExhausted, "node makes more than %d requests a second", n.limits.Rate)
	}
	n.paidUntil = n.paidUntil.Add(tick)
	return nil
}

// updateNames replaces a stream's previous count of names by its present one.
func (n *nodeAccount) updateNames(until, from nameCount) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	names, bytes := n.names.names+from.names-until.names, n.names.bytes+from.bytes-until.bytes
	switch {
	case from.names > until.names && names > n.limits.NodeNames:
		return status.Errorf(codes.ResourceExhausted, "node subscribes to more than %d names", n.limits.NodeNames)
	case from.bytes > until.bytes && bytes > n.limits.NodeBytes:
		return status.Errorf(codes.ResourceExhausted, "node subscribes to names of more than %d bytes", n.limits.NodeBytes)
	}
	n.names = nameCount{names, bytes}
	return nil
}
