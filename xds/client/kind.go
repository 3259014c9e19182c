package client

import "google.golang.org/protobuf/types/known/anypb"

// kind is a resource type the client subscribes to.
type kind int

// The order is make-before-break: a resource comes before those that refer to it, and
// requests are sent in this order.
const (
	clusters kind = iota
	assignments
	listeners
	routes
	extensions
	kinds
)

// kindSpec describes a kind.
type kindSpec struct {
	url      string
	wildcard bool // all resources, rather than those asked for by name
	// removable resources are dropped when the server removes them. Envoy keeps a route
	// table and an assignment once it has received them; so does this client.
	removable bool
	decode    func(name string, a *anypb.Any) (any, error)
}

// spec returns the description of a kind.
func (k kind) spec() kindSpec {
	switch k {
	case clusters:
		return kindSpec{typePrefix + "envoy.config.cluster.v3.Cluster", true, true, decodeCluster}
	case assignments:
		return kindSpec{typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment", false, false, decodeAssignment}
	case listeners:
		return kindSpec{typePrefix + "envoy.config.listener.v3.Listener", true, true, decodeListener}
	case routes:
		return kindSpec{typePrefix + "envoy.config.route.v3.RouteConfiguration", false, false, decodeRouteTable}
	}
	return kindSpec{typePrefix + "envoy.config.core.v3.TypedExtensionConfig", false, true, decodeExtension}
}

// String is the short name that Envoy's documentation uses.
func (k kind) String() string {
	return [...]string{"CDS", "EDS", "LDS", "RDS", "ECDS", "?"}[min(k, kinds)]
}

// kindOf finds a kind by its type URL.
func kindOf(url string) (kind, bool) {
	for k := range kinds {
		if k.spec().url == url {
			return k, true
		}
	}
	return kinds, false
}

// setVersion stores the version of a resource in its decoded form.
func setVersion(value any, version string) {
	switch v := value.(type) {
	case *Cluster:
		v.Version = version
	case *Assignment:
		v.Version = version
	case *Listener:
		v.Version = version
	case *RouteTable:
		v.Version = version
	case *Extension:
		v.Version = version
	case *SlotConfig:
		v.Version = version
	}
}
