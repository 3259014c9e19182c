package fleet

import (
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Route is one transport by which a replica may pull KV blocks, as its migrator
// last told it.
type Route struct {
	Transport string
	Peer      policies.ReplicaID // whom the blocks come from; empty: in general
	State     string             // RouteReady, RouteHeld, RouteBroken or RouteUnsuited
	Why       string             // it is not ready
	Rate      float64            // bytes per second of its pulls; 0: not measured
	Over      string             // what lies between the two, as far as it is known
}

// The states of a route.
const (
	RouteReady  = "ready"
	RouteHeld   = "held" // it failed lately, and is tried last
	RouteBroken = "broken"
	// RouteUnsuited: it works, but not with the memory that the KV cache is in.
	RouteUnsuited = "unsuited"
)

// maxRoutes is how many a report may tell.
const maxRoutes = 32

// decodeRoutes returns the routes that are valid, and how many were not. They
// only inform.
func decodeRoutes(list []*api.Route) (routes []Route, dropped int) {
	if len(list) > maxRoutes {
		list, dropped = list[:maxRoutes], len(list)-maxRoutes
	}
	for _, r := range list {
		state := r.GetState()
		if r.GetTransport() == "" || len(r.GetTransport()) > maxWord || len(r.GetPeer()) > maxName || !within(r.GetBytesPerSecond(), maxRate) ||
			state != RouteReady && state != RouteHeld && state != RouteBroken && state != RouteUnsuited {
			dropped++
			continue
		}
		routes = append(routes, Route{Transport: r.GetTransport(), Peer: policies.ReplicaID(r.GetPeer()), State: state, Why: cut(r.GetReason(), maxWhy), Rate: r.GetBytesPerSecond(), Over: cut(r.GetPath(), maxWhy)})
	}
	return routes, dropped
}
