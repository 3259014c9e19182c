package loadreport

import (
	"github.com/cascadeinfer/cascade/internal/cleantext"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
)

// Route is one transport by which a replica may pull KV blocks, as its migrator
// last reported it. Its tags are the names in GET /status.
type Route struct {
	Name   string             `json:"name"`                       // of the transport
	Peer   policies.ReplicaID `json:"peer,omitempty"`             // the replica that the blocks come from; empty: any
	State  string             `json:"state"`                      // RouteReady, RouteHeld, RouteBroken, RouteUnsuited or RouteUnknown
	Reason string             `json:"reason,omitempty"`           // why it is not ready
	Rate   float64            `json:"bytes_per_second,omitempty"` // of its pulls; 0: not measured
	Path   string             `json:"path,omitempty"`             // the links between the two, as far as they are known
}

// The states of a route.
const (
	RouteReady    = "ready"
	RouteHeld     = "held" // it failed recently, and is tried last
	RouteBroken   = "broken"
	RouteUnsuited = "unsuited" // it works, but not with the memory of the KV cache
	RouteUnknown  = "unknown"  // the engine is away, so that its memory cannot be probed
)

// MaxRoutes is how many routes a report may have.
const MaxRoutes = 32

// decodeRoutes returns the valid routes, and how many were dropped. Routes are only
// informative.
func decodeRoutes(list []*api.Route) (routes []Route, dropped int) {
	if len(list) > MaxRoutes {
		list, dropped = list[:MaxRoutes], len(list)-MaxRoutes
	}
	for _, r := range list {
		state := r.GetState()
		if r.GetTransport() == "" || len(r.GetTransport()) > maxKeyword || len(r.GetPeer()) > MaxName || !Within(r.GetBytesPerSecond(), MaxRate) ||
			state != RouteReady && state != RouteHeld && state != RouteBroken && state != RouteUnsuited && state != RouteUnknown {
			dropped++
			continue
		}
		routes = append(routes, Route{
			Name: r.GetTransport(), Peer: policies.ReplicaID(r.GetPeer()), State: state, Reason: cleantext.Printable(r.GetReason(), maxReason),
			Rate: r.GetBytesPerSecond(), Path: cleantext.Printable(r.GetPath(), maxReason),
		})
	}
	return routes, dropped
}
