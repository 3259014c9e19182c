package publish_test

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// orderRecorder records in which order one node is sent resources and
// acknowledges them. On streams per type, only the publisher orders clusters,
// endpoints and routes.
type orderRecorder struct {
	*publish.Ledger
	sent       *atomic.Int64 // resources sent
	cache      *slotCache
	mu         sync.Mutex
	sentBefore map[int64]map[string]bool // on each stream, by type and name
	open       map[openResponse]bool     // endpoints and clusters that were changed and are not acknowledged
	tables     int                       // route tables that were sent
	early      int                       // of them, while such endpoints were open
	acked      time.Time                 // when a route table was acknowledged last
}

// openResponse identifies a response: every stream counts its own nonces.
type openResponse struct {
	stream int64
	nonce  string
}

// hasChanges reports whether a response changes a resource that the stream was
// sent before. Other responses answer a subscription, at a time that the client
// decides.
func (w *orderRecorder) hasChanges(id int64, resp *discoveryv3.DeltaDiscoveryResponse) (changed bool) {
	seen := w.sentBefore[id]
	if seen == nil {
		seen = make(map[string]bool)
		w.sentBefore[id] = seen
	}
	for _, r := range resp.GetResources() {
		k := resp.GetTypeUrl() + " " + r.GetName()
		changed = changed || seen[k]
		seen[k] = true
	}
	for _, name := range resp.GetRemovedResources() {
		changed = changed || seen[resp.GetTypeUrl()+" "+name]
	}
	return changed
}

func (w *orderRecorder) OnStreamDeltaResponse(id int64, req *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	w.sent.Add(int64(len(resp.Resources)))
	w.mu.Lock()
	changed := w.hasChanges(id, resp)
	switch resp.GetTypeUrl() {
	case resources.EndpointType, resources.ClusterType:
		if changed {
			w.open[openResponse{id, resp.GetNonce()}] = true
		}
	case resources.RouteType:
		w.tables++
		if len(w.open) > 0 {
			w.early++
		}
	}
	w.mu.Unlock()
	w.Ledger.OnStreamDeltaResponse(id, req, resp)
}

func (w *orderRecorder) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	w.mu.Lock()
	delete(w.open, openResponse{id, req.GetResponseNonce()})
	if req.GetTypeUrl() == resources.RouteType {
		w.acked = time.Now()
	}
	w.mu.Unlock()
	return w.Ledger.OnStreamDeltaRequest(id, req)
}

// OnDeltaStreamClosed forgets responses that will not be acknowledged: Envoy
// ends the stream of a stage's endpoints with the stage.
func (w *orderRecorder) OnDeltaStreamClosed(id int64, n *corev3.Node) {
	w.mu.Lock()
	delete(w.sentBefore, id)
	maps.DeleteFunc(w.open, func(o openResponse, _ bool) bool { return o.stream == id })
	w.mu.Unlock()
	w.Ledger.OnDeltaStreamClosed(id, n)
}

// slotCache is the cache with an estimator for the slot inside proxies in every
// set.
type slotCache struct {
	*cache.Cache
	mu   sync.Mutex
	sets map[string]resources.Set // by group
	slot resources.Set
}

func (s *slotCache) Set(group string, set resources.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sets[group] = set
	s.Cache.Set(group, set.WithTypes(s.slot, resources.ExtensionType))
}

// setEstimator sets a filter that adds the word to every response.
func (s *slotCache) setEstimator(t *testing.T, word string) {
	t.Helper()
	r, err := resources.Encode(resources.ExtensionType, resources.LengthFilter, &corev3.TypedExtensionConfig{
		Name: resources.LengthFilter,
		TypedConfig: packAny(t, &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
			ResponseMutations: []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: "x-slot", Value: word},
			}}}},
		}}),
	})
	testkit.NoError(t, err)
	slot := testkit.Must(resources.NewSet(r))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slot = slot
	for group, set := range s.sets {
		s.Cache.Set(group, set.WithTypes(slot, resources.ExtensionType))
	}
}

// startServices runs a control plane with every xDS service at an address; "" is any free one.
func startServices(t *testing.T, address string) (*controlPlane, *orderRecorder) {
	t.Helper()
	shared := &slotCache{Cache: cache.New(cache.Config{SecretsFor: func(string) bool { return true }}), sets: make(map[string]resources.Set)}
	p := newControlPlane(t, publish.Config{Cache: shared})
	w := &orderRecorder{Ledger: p.ledger, sent: &p.sent, cache: shared, sentBefore: make(map[int64]map[string]bool), open: make(map[openResponse]bool)}
	services := testkit.Must(server.New(server.Config{Cache: shared, Callbacks: w}))
	p.serve(t, address, func(ctx context.Context, s *grpc.Server) { services.Register(ctx, s) })
	return p, w
}
