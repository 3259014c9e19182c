package publish_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	luav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
	"github.com/cascadeinfer/cascade/xds/serve"
)

// witness sees in which order one node is told and acknowledges. On streams of
// their own, nothing but the publisher orders clusters, endpoints and routes.
type witness struct {
	counter
	cache  *slotted
	mu     sync.Mutex
	told   map[int64]bool   // streams that have had a response
	open   map[string]int64 // endpoints that were changed and are not acknowledged, by nonce
	tables int              // tables that were sent
	early  int              // of them, while such endpoints were open
	acked  time.Time        // when a table was last acknowledged
}

func (w *witness) OnStreamDeltaResponse(id int64, req *discoveryv3.DeltaDiscoveryRequest, resp *discoveryv3.DeltaDiscoveryResponse) {
	w.mu.Lock()
	switch resp.GetTypeUrl() {
	case resources.EndpointType, resources.ClusterType:
		if w.told[id] {
			w.open[resp.GetNonce()] = id
		}
	case resources.RouteType:
		w.tables++
		if len(w.open) > 0 {
			w.early++
		}
	}
	w.told[id] = true // the first response is an answer, and not a change
	w.mu.Unlock()
	w.counter.OnStreamDeltaResponse(id, req, resp)
}

func (w *witness) OnStreamDeltaRequest(id int64, req *discoveryv3.DeltaDiscoveryRequest) error {
	w.mu.Lock()
	delete(w.open, req.GetResponseNonce())
	if req.GetTypeUrl() == resources.RouteType {
		w.acked = time.Now()
	}
	w.mu.Unlock()
	return w.counter.OnStreamDeltaRequest(id, req)
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
	s.Cache.Set(group, set.With(s.slot, resources.ExtensionType))
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
		s.Cache.Set(group, set.With(slot, resources.ExtensionType))
	}
}

// startServices is startPlane with every xDS service, as a control plane has.
func startServices(t *testing.T, address string) (*plane, *witness) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p := new(plane)
	shared, ledger := &slotted{Cache: cache.New(cache.Config{}), shown: make(map[string]resources.Set)}, publish.NewLedger(nil)
	var err error
	if p.publisher, err = publish.New(publish.Config{Target: shared, Ledger: ledger}); err != nil {
		t.Fatal(err)
	}
	w := &witness{counter: counter{ledger, &p.sent}, cache: shared, told: make(map[int64]bool), open: make(map[string]int64)}
	services, err := serve.New(serve.Config{Cache: shared, Callbacks: w})
	if err != nil {
		t.Fatal(err)
	}
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
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

// freeAddress is an address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// owner is an Envoy whose listeners and clusters are somebody else's: one
// listener with a virtual host for LLM traffic and one for the rest.
type owner struct {
	*envoytest.Process
	llm, rest *client
}

const (
	llmHost   = "llm.example"
	otherHost = "shop.example"
)

// manager is a listener's HTTP connection manager of the owner's.
func manager(t *testing.T, edit func(*hcmv3.HttpConnectionManager)) []*listenerv3.FilterChain {
	t.Helper()
	m := &hcmv3.HttpConnectionManager{StatPrefix: "owner"}
	edit(m)
	if n := len(m.HttpFilters); n == 0 || m.HttpFilters[n-1].Name != resources.RouterFilter().Name {
		m.HttpFilters = append(m.HttpFilters, resources.RouterFilter())
	}
	return []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
		Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: pack(t, m)},
	}}}}
}

func pack(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func anyPort() *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{},
	}}}
}

// own is the owner's own cluster, of one endpoint.
func own(t *testing.T, name, address string) *clusterv3.Cluster {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return &clusterv3.Cluster{
		Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: a.IP.String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port)},
				}}},
			}}}},
		}}},
	}
}

// to is a route of the owner's to one of their clusters.
func to(cluster string) *routev3.Route {
	return &routev3.Route{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
	}
}

// estimator is a filter of the owner's that knows a request's length, and has
// the route picked again by it.
func estimator(t *testing.T) *hcmv3.HttpFilter {
	const code = `function envoy_on_request(h)
  local tokens = h:headers():get("x-test-tokens")
  if tokens ~= nil then
    h:headers():replace("` + length.TokensHeader + `", tokens)
    h:headers():replace("` + length.ModelHeader + `", "m")
    h:clearRouteCache()
  end
end`
	return &hcmv3.HttpFilter{Name: "envoy.filters.http.lua", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: pack(t, &luav3.Lua{
		DefaultSourceCode: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: code}},
	})}}
}

// startOwner starts the owner's Envoy with what attach says added: by the
// door, through files that stand for the owner's control plane; for a whole
// listener, in the bootstrap.
func startOwner(t *testing.T, h *attach.Host, shop *backend) *owner {
	t.Helper()
	b := &bootstrapv3.Bootstrap{
		Node:            &corev3.Node{Id: "owner-1", Cluster: "owner"},
		Admin:           &bootstrapv3.Admin{Address: anyPort()},
		StaticResources: new(bootstrapv3.Bootstrap_StaticResources),
	}
	if h.Bootstrap != nil {
		proto.Merge(b, h.Bootstrap)
	}
	clusters := append(slices.Clone(h.Clusters), own(t, "shop", shop.address))
	rest := &routev3.VirtualHost{Name: "rest", Domains: []string{"*"}, Routes: []*routev3.Route{to("shop")}}
	front := func(hosts ...*routev3.VirtualHost) []*listenerv3.FilterChain {
		return manager(t, func(m *hcmv3.HttpConnectionManager) {
			m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{Name: "owner", VirtualHosts: hosts}}
		})
	}
	names := [2]string{"front", "front"}
	if h.Listener == nil {
		names[0] = "llm"
		b.StaticResources.Listeners = []*listenerv3.Listener{
			{Name: "llm", Address: anyPort(), FilterChains: manager(t, func(m *hcmv3.HttpConnectionManager) {
				m.HttpFilters = append(m.HttpFilters, estimator(t))
				proto.Merge(m, h.Manager)
			})},
			{Name: "front", Address: anyPort(), FilterChains: front(rest)},
		}
		b.StaticResources.Clusters = clusters
	} else {
		llm := &routev3.VirtualHost{Name: "llm", Domains: []string{llmHost}, Routes: []*routev3.Route{h.Route}}
		b.DynamicResources = &bootstrapv3.Bootstrap_DynamicResources{
			LdsConfig: file(t, h.Listener, &listenerv3.Listener{Name: "front", Address: anyPort(), FilterChains: front(llm, rest)}),
			CdsConfig: file(t, messages(clusters)...),
		}
	}
	text, err := resources.Text(b)
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{Process: envoytest.Start(t, envoytest.Config{Bootstrap: string(text)})}
	o.llm, o.rest = o.client(t, names[0], llmHost), o.client(t, names[1], otherHost)
	return o
}

func messages[M proto.Message](list []M) []proto.Message {
	out := make([]proto.Message, len(list))
	for i, m := range list {
		out[i] = m
	}
	return out
}

// file is a source of resources that lie in a file.
func file(t *testing.T, list ...proto.Message) *corev3.ConfigSource {
	t.Helper()
	r := &discoveryv3.DiscoveryResponse{VersionInfo: "1"}
	for _, m := range list {
		r.Resources = append(r.Resources, pack(t, m))
	}
	text, err := resources.Text(r)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "resources.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{PathConfigSource: &corev3.PathConfigSource{Path: path}},
	}
}

// asHost is a transport whose requests name one host.
type asHost struct {
	*http.Transport
	host string
}

func (a asHost) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host = a.host
	return a.Transport.RoundTrip(r)
}

// client returns a client of one of the owner's virtual hosts.
func (o *owner) client(t *testing.T, listener, host string) *client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{"http://" + o.Listener(listener) + "/v1/completions", &http.Client{Transport: asHost{transport, host}, Timeout: 20 * time.Second}}
}

// ways are the two ways into an Envoy.
var ways = map[string]func(attach.Config) (*attach.Host, error){"whole": attach.Whole, "door": attach.Door}

// TestSplit has an Envoy whose listeners and clusters are its owner's follow
// the plans of a control plane that it meets on per-type streams.
func TestSplit(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			backends := startBackends(t, "a", "b", "c", "d", "shop")
			p, w := startServices(t, "")
			p.publisher.Submit(fleetOf(backends, 1, []policies.Tokens{1000, 5000}, "a b", "c", "d"))
			h, err := way(attach.Config{Control: []string{p.address}, Slot: true})
			if err != nil {
				t.Fatal(err)
			}
			o := startOwner(t, h, backends["shop"])
			testFirstRequests(t, o)
			testRanges(t, o)
			if name == "whole" {
				testTokens(t, o)
			}
			for range 10 {
				if replica, stage, err := o.rest.post(100); err != nil || replica != "shop" || stage != "" {
					t.Errorf("the owner's own host: served by %q, stage %q, %v", replica, stage, err)
				}
			}
			testSlot(t, w, o)
			testBoundaries(t, p, w, backends, o)
			w.mu.Lock()
			if w.tables < 50 || w.early > 0 {
				t.Errorf("%d of %d route tables were sent before the endpoints that they need were acknowledged", w.early, w.tables)
			}
			w.mu.Unlock()
			testReturn(t, p, backends, o)
		})
	}
}

// testFirstRequests sends the first requests to clusters that Envoy has never
// heard of, all at once.
func testFirstRequests(t *testing.T, o *owner) {
	t.Helper()
	if n := len(o.Stats(`^cluster\.cascade/m/.*membership_total`)); n != 0 {
		t.Errorf("%d stage clusters before the first request", n)
	}
	var wg sync.WaitGroup
	start := time.Now()
	for range 20 {
		wg.Go(func() {
			if _, stage, err := o.llm.post(220 << 10); err != nil || stage != "s2" {
				t.Errorf("first request: stage %q, %v", stage, err)
			}
		})
	}
	wg.Wait()
	t.Logf("20 first requests of 220 KiB after %v", time.Since(start).Round(time.Millisecond))
}

// testRanges checks the stages by the size of the body, four bytes a token,
// and that what a client says of itself counts for nothing.
func testRanges(t *testing.T, o *owner) {
	t.Helper()
	for bytes, want := range map[int]string{
		1: "s0", 999 * 4: "s0", 1000*4 - 1: "s0", 1000 * 4: "s1", 5000*4 - 1: "s1", 5000 * 4: "s2",
	} {
		for _, forged := range [][]string{nil, {length.TokensHeader, "5", length.ModelHeader, "m"}} {
			if _, stage, err := o.llm.post(bytes, forged...); err != nil || stage != want {
				t.Errorf("%d bytes: stage %q, %v, want %s", bytes, stage, err, want)
			}
		}
	}
}

// testTokens checks the stages by the length that a filter of the owner's has
// found.
func testTokens(t *testing.T, o *owner) {
	t.Helper()
	for tokens, want := range map[string]string{"0": "s0", "999": "s0", "1000": "s1", "4999": "s1", "5000": "s2", "9223372036854775807": "s2", "abc": "s2"} {
		req, err := http.NewRequest("POST", o.llm.url, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-test-tokens", tokens)
		resp, err := o.llm.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if stage := resp.Header.Get(length.StageHeader); resp.StatusCode != 200 || stage != want {
			t.Errorf("%s tokens: %s, stage %q, want %s", tokens, resp.Status, stage, want)
		}
	}
}

// testSlot fills the slot of the owner's Envoy twice.
func testSlot(t *testing.T, w *witness, o *owner) {
	t.Helper()
	for _, word := range []string{"", "one", "two"} {
		if word != "" {
			w.cache.fill(t, word)
		}
		start, got := time.Now(), ""
		o.until(t, "using the slot", func() bool {
			resp, err := o.llm.http.Get(o.llm.url)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			got = resp.Header.Get("x-slot")
			return got == word
		})
		t.Logf("slot %q after %v", word, time.Since(start).Round(time.Millisecond))
	}
}

// testBoundaries moves boundaries and replicas under load.
func testBoundaries(t *testing.T, p *plane, w *witness, backends map[string]*backend, o *owner) {
	t.Helper()
	p.current(t, 1, 1)
	var wg sync.WaitGroup
	var served atomic.Int64
	stop := make(chan struct{})
	for i := range 4 {
		wg.Go(func() {
			for n := 100; ; n = (n*7 + i) % 40000 {
				select {
				case <-stop:
					return
				default:
				}
				if _, stage, err := o.llm.post(n + 1); err != nil || stage == "" {
					t.Errorf("stage %q: %v", stage, err)
				}
				served.Add(1)
			}
		})
	}
	var boundaries []time.Duration
	for e := policies.Epoch(2); e < 42; e++ {
		stages, cuts := []string{"a b", "c", "d"}, []policies.Tokens{1000 + policies.Tokens(e), 5000}
		switch e % 4 {
		case 1:
			stages = []string{"a", "b c", "d"}
		case 2:
			stages, cuts = []string{"a b", "c d"}, cuts[:1]
		case 3:
			stages, cuts = []string{"a", "b", "c", "d"}, append(cuts, 9000) // a stage that nobody has asked for
		}
		p.publisher.Submit(fleetOf(backends, e, cuts, stages...))
		p.current(t, e, 1)
	}
	close(stop)
	wg.Wait()
	p.publisher.Submit(fleetOf(backends, 42, []policies.Tokens{1000, 5000}, "a b", "c", "d"))
	p.current(t, 42, 1)
	sent := p.sent.Load()
	for e := policies.Epoch(43); e < 63; e++ {
		start := time.Now()
		p.publisher.Submit(fleetOf(backends, e, []policies.Tokens{1000 + policies.Tokens(e), 5000}, "a b", "c", "d"))
		p.current(t, e, 1)
		w.mu.Lock()
		boundaries = append(boundaries, w.acked.Sub(start))
		w.mu.Unlock()
	}
	if n := p.sent.Load() - sent; n != int64(len(boundaries)) {
		t.Errorf("%d resources were sent for %d boundaries", n, len(boundaries))
	}
	slices.Sort(boundaries)
	t.Logf("40 plans beside %d requests; boundary to acknowledgement: median %v, worst %v", served.Load(), boundaries[len(boundaries)/2], boundaries[len(boundaries)-1])
	if replica, stage, err := o.llm.post(1062*4 - 1); err != nil || stage != "s0" {
		t.Errorf("below the last boundary: %q of %q, %v", replica, stage, err)
	}
	if replica, _, err := o.llm.post(1062 * 4); err != nil || replica != "c" {
		t.Errorf("at the last boundary: %q, %v", replica, err)
	}
}

// testReturn stops the control plane and starts it again.
func testReturn(t *testing.T, p *plane, backends map[string]*backend, o *owner) {
	t.Helper()
	p.stop()
	for range 20 {
		if replica, _, err := o.llm.post(1062 * 4); err != nil || replica != "c" {
			t.Errorf("without a control plane: %q, %v", replica, err)
		}
	}
	again, _ := startServices(t, p.address)
	start := time.Now()
	again.publisher.Submit(fleetOf(backends, 62, []policies.Tokens{1062, 5000}, "a b", "c", "d"))
	again.current(t, 62, 1)
	took := time.Since(start)
	// A stream for each source: the table, the clusters, and the endpoints of
	// each stage. All of them come back, and none is told anything.
	o.until(t, "back on its streams", func() bool {
		return o.Stats(`^cluster\.cascade-xds\.upstream_rq_active`)["cluster.cascade-xds.upstream_rq_active"] >= 4
	})
	if n := again.sent.Load(); n != 0 {
		t.Errorf("%d resources were sent again", n)
	}
	again.publisher.Submit(fleetOf(backends, 63, []policies.Tokens{1100, 5000}, "a b", "c", "d"))
	again.current(t, 63, 1)
	if n := again.sent.Load(); n != 1 {
		t.Errorf("%d resources for a new boundary, want 1", n)
	}
	t.Logf("back after %v", took.Round(time.Millisecond))
	if _, stage, err := o.llm.post(1100*4 - 1); err != nil || stage != "s0" {
		t.Errorf("stage %q, %v", stage, err)
	}
}

func (o *owner) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("Envoy is not %s: %v", what, o.Stats(`cascade-xds`))
		}
	}
}

// TestSplitWithoutControl starts the owner's Envoy while no control plane is
// there: its other traffic flows, and what Cascade should route is refused, or
// served by the fallback, but never answered with "not found".
func TestSplitWithoutControl(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			backends := startBackends(t, "a", "b", "shop", "fallback")
			address := freeAddress(t)
			c := attach.Config{Control: []string{address}, FetchTimeout: 300 * time.Millisecond}
			if name == "door" {
				c.Fallback = "spare"
			}
			h, err := way(c)
			if err != nil {
				t.Fatal(err)
			}
			if name == "door" {
				h.Clusters = append(h.Clusters, own(t, "spare", backends["fallback"].address))
			}
			o := startOwner(t, h, backends["shop"])
			if replica, _, err := o.rest.post(100); err != nil || replica != "shop" {
				t.Errorf("the owner's own host: %q, %v", replica, err)
			}
			if name == "whole" {
				resp, err := o.llm.http.Get(o.llm.url)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if resp.StatusCode != 503 || resp.Header.Get(attach.UnroutedHeader) != "1" || resp.Header.Get("retry-after") == "" {
					t.Errorf("without a control plane: %s, %v", resp.Status, resp.Header)
				}
			} else {
				var wg sync.WaitGroup
				for i := range 40 {
					wg.Go(func() {
						if replica, _, err := o.llm.post(1 + i*100000); err != nil || replica != "fallback" {
							t.Errorf("without a control plane: %d bytes: %q, %v", 1+i*100000, replica, err)
						}
					})
				}
				wg.Wait()
			}
			p, _ := startServices(t, address)
			p.publisher.Submit(fleetOf(backends, 1, []policies.Tokens{1000}, "a", "b"))
			start := time.Now()
			o.until(t, "served by Cascade", func() bool {
				replica, _, err := o.llm.post(10)
				return err == nil && replica == "a"
			})
			t.Logf("served by Cascade %v after it came", time.Since(start).Round(time.Millisecond))
			if name == "whole" {
				return
			}
			// The control plane is gone before anybody asked for a stage.
			p.stop()
			if replica, _, err := o.llm.post(4000); err != nil || replica != "fallback" {
				t.Errorf("a stage that nobody knows: %q, %v", replica, err)
			}
			if replica, _, err := o.llm.post(10); err != nil || replica != "a" {
				t.Errorf("a stage that is known: %q, %v", replica, err)
			}
			// Nobody of the fleet is left.
			backends["a"].kill()
			backends["b"].kill()
			for range 20 {
				if replica, _, err := o.llm.post(10); err != nil || replica != "fallback" {
					t.Errorf("without replicas: %q, %v", replica, err)
				}
			}
			backends["a"] = startBackend(t, "a", backends["a"].address)
			o.until(t, "served by Cascade again", func() bool {
				replica, _, err := o.llm.post(10)
				return err == nil && replica == "a"
			})
		})
	}
}
