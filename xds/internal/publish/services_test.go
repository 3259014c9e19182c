package publish_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// witness sees in which order one node is told and acknowledges. On streams of
// their own, nothing but the publisher orders clusters, endpoints and routes.
type witness struct {
	counter
	cache  *slotted
	mu     sync.Mutex
	told   map[int64]map[string]bool // what each stream has been sent before, by type and name
	open   map[openResponse]bool     // endpoints and clusters that were changed and are not acknowledged
	tables int                       // tables that were sent
	early  int                       // of them, while such endpoints were open
	acked  time.Time                 // when a table was last acknowledged
}

// openResponse names a response: every stream counts its own nonces.
type openResponse struct {
	stream int64
	nonce  string
}

// changes reports whether a response tells a stream anything new of what it was
// told before. All else answers a subscription, and comes when the client asks.
func (w *witness) changes(id int64, resp *discoveryv3.DeltaDiscoveryResponse) (changed bool) {
	told := w.told[id]
	if told == nil {
		told = make(map[string]bool)
		w.told[id] = told
	}
	for _, r := range resp.GetResources() {
		k := resp.GetTypeUrl() + " " + r.GetName()
		changed = changed || told[k]
		told[k] = true
	}
	for _, name := range resp.GetRemovedResources() {
		changed = changed || told[resp.GetTypeUrl()+" "+name]
	}
	return changed
}

func (w *witness) OnStreamDeltaResponse(id int64, req *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	w.mu.Lock()
	changed := w.changes(id, resp)
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
	w.counter.OnStreamDeltaResponse(id, req, resp)
}

func (w *witness) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	w.mu.Lock()
	delete(w.open, openResponse{id, req.GetResponseNonce()})
	if req.GetTypeUrl() == resources.RouteType {
		w.acked = time.Now()
	}
	w.mu.Unlock()
	return w.counter.OnStreamDeltaRequest(id, req)
}

// OnDeltaStreamClosed forgets what nobody will acknowledge: Envoy ends the
// stream of a stage's endpoints with the stage.
func (w *witness) OnDeltaStreamClosed(id int64, n *corev3.Node) {
	w.mu.Lock()
	delete(w.told, id)
	maps.DeleteFunc(w.open, func(o openResponse, _ bool) bool { return o.stream == id })
	w.mu.Unlock()
	w.counter.OnDeltaStreamClosed(id, n)
}

// slotted is the cache, and an estimator for the slot inside proxies in every
// set.
type slotted struct {
	*cache.Cache
	mu    sync.Mutex
	shown map[string]resources.Set // by group
	slot  resources.Set
}

func (s *slotted) Set(group string, set resources.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown[group] = set
	s.Cache.Set(group, set.WithTypes(s.slot, resources.ExtensionType))
}

// fill puts a filter into the slot that says so in every answer.
func (s *slotted) fill(t *testing.T, word string) {
	t.Helper()
	r, err := resources.Encode(resources.ExtensionType, resources.LengthFilter, &corev3.TypedExtensionConfig{
		Name: resources.LengthFilter,
		TypedConfig: pack(t, &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{
			ResponseMutations: []*mutationv3.HeaderMutation{{Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{
				Header: &corev3.HeaderValue{Key: "x-slot", Value: word},
			}}}},
		}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	slot, err := resources.NewSet(r)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slot = slot
	for group, set := range s.shown {
		s.Cache.Set(group, set.WithTypes(slot, resources.ExtensionType))
	}
}

// startServices is startPlane with every xDS service, as a control plane has.
func startServices(t *testing.T, address string) (*plane, *witness) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := new(plane)
	shared, ledger := &slotted{Cache: cache.New(cache.Config{}), shown: make(map[string]resources.Set)}, publish.NewLedger(nil)
	var err error
	if p.publisher, err = publish.New(publish.Config{Cache: shared, Ledger: ledger}); err != nil {
		t.Fatal(err)
	}
	w := &witness{counter: counter{ledger, &p.sent}, cache: shared, told: make(map[int64]map[string]bool), open: make(map[openResponse]bool)}
	services, err := server.New(server.Config{Cache: shared, Callbacks: w})
	if err != nil {
		t.Fatal(err)
	}
	listener := listen(t, address)
	p.address = listener.Addr().String()
	server := grpc.NewServer()
	services.Register(ctx, server)
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(listener) })
	wg.Go(func() { p.publisher.Run(ctx) })
	p.stop = sync.OnceFunc(func() { cancel(); server.Stop(); wg.Wait() })
	t.Cleanup(p.stop)
	return p, w
}

// listen listens at an address of loopback; "" is any free one below the range from
// which others are given theirs, so that whoever stops can listen there again.
func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	free := address == ""
	for range 100 {
		if free {
			address = fmt.Sprintf("127.0.0.1:%d", 10000+rand.N(20000))
		}
		l, err := net.Listen("tcp", address)
		switch {
		case err == nil:
			return l
		case !free:
			t.Fatal(err)
		}
	}
	t.Fatal("no address is free")
	return nil
}

// freeAddress is an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := listen(t, "")
	defer l.Close()
	return l.Addr().String()
}
