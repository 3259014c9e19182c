package cache

import (
	"context"
	"maps"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// deltaBody is the body of a response of the incremental protocol. Clients that
// get the same response share it.
type deltaBody struct {
	entries   []*entry
	removed   []string
	resources []*discoveryv3.Resource // of entries
	version   string
}

// complete fills in the derived fields. The body must not be changed
// afterwards.
func (a *deltaBody) complete(ct *content) {
	a.version = ct.version()
	a.resources = make([]*discoveryv3.Resource, len(a.entries))
	for i, e := range a.entries {
		a.resources[i] = e.delta
	}
}

func (a *deltaBody) isEmpty() bool { return len(a.entries) == 0 && len(a.removed) == 0 }

// equal reports whether a body, which may be nil, has the same entries and
// removals.
func (a *deltaBody) equal(b *deltaBody) bool {
	return a != nil && slices.Equal(a.entries, b.entries) && slices.Equal(a.removed, b.removed)
}

// deltaResponse is a response to one client. The message is built on the
// stream's goroutine; its parts are shared and read-only.
type deltaResponse struct {
	req *gcp.DeltaRequest
	sub gcp.Subscription
	*deltaBody
}

var _ gcp.DeltaResponse = (*deltaResponse)(nil)

func (r *deltaResponse) GetDeltaDiscoveryResponse() (*discoveryv3.DeltaDiscoveryResponse, error) {
	return &discoveryv3.DeltaDiscoveryResponse{
		TypeUrl:           r.req.GetTypeUrl(),
		SystemVersionInfo: r.version,
		Resources:         r.resources,
		RemovedResources:  r.removed,
	}, nil
}

// GetReturnedResources returns what the client has after it has applied the
// response. The server calls it on the stream's goroutine, while the
// subscription does not change.
func (r *deltaResponse) GetReturnedResources() map[string]string {
	// A watch that was opened in the meantime may still read the map.
	next := maps.Clone(r.sub.ReturnedResources())
	if next == nil {
		next = make(map[string]string, len(r.entries))
	}
	for _, e := range r.entries {
		next[e.Name] = e.Version
	}
	for _, name := range r.removed {
		if _, asked := r.sub.SubscribedResources()[name]; asked {
			next[name] = absent
		} else {
			delete(next, name)
		}
	}
	return next
}

func (r *deltaResponse) GetDeltaRequest() *discoveryv3.DeltaDiscoveryRequest { return r.req }
func (r *deltaResponse) GetSystemVersion() (string, error)                   { return r.version, nil }
func (r *deltaResponse) GetResponseVersion() string                          { return r.version }
func (r *deltaResponse) GetNextVersionMap() map[string]string                { return r.GetReturnedResources() }
func (r *deltaResponse) GetContext() context.Context                         { return context.Background() }

// sotwResponse is a response of the state-of-the-world protocol.
type sotwResponse struct {
	req     *gcp.Request
	entries []*entry
	next    map[string]string
	version string
}

var _ gcp.Response = (*sotwResponse)(nil)

func (r *sotwResponse) GetDiscoveryResponse() (*discoveryv3.DiscoveryResponse, error) {
	rs := make([]*anypb.Any, len(r.entries))
	for i, e := range r.entries {
		rs[i] = e.any
	}
	return &discoveryv3.DiscoveryResponse{
		TypeUrl:     r.req.GetTypeUrl(),
		VersionInfo: r.version,
		Resources:   rs,
	}, nil
}

func (r *sotwResponse) GetRequest() *discoveryv3.DiscoveryRequest { return r.req }
func (r *sotwResponse) GetVersion() (string, error)               { return r.version, nil }
func (r *sotwResponse) GetResponseVersion() string                { return r.version }
func (r *sotwResponse) GetReturnedResources() map[string]string   { return r.next }
func (r *sotwResponse) GetContext() context.Context               { return context.Background() }
