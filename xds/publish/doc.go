// Package publish shows a fleet's views to its proxies, one step at a time:
// first the endpoints of the old plan and the new together (add), then the
// new routes (flip), then the new endpoints alone (retire). A step waits until
// the nodes have acknowledged the one before, because a route to endpoints
// that a proxy does not have yet is an error that the proxy acknowledges.
//
// It is not the planner and not the server: views come from the fleet, streams
// are answered by package cache. What each node has is in the Ledger, which
// belongs to nodes and not to streams.
//
// Invariants: nothing is shown that was not proven; a node that acknowledges
// in time never has routes whose stages lack their members; a node that does
// not is waited for once, for a bounded time, and then fenced until it has
// caught up. Observers (resources.ObserverCluster) are sent the same and never
// waited for.
package publish
