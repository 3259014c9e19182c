package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

func TestMain(m *testing.M) {
	if clientsMain() {
		return
	}
	goleak.VerifyTestMain(m)
}

// Short names of the types in the tests below.
const (
	cds = resources.ClusterType
	eds = resources.EndpointType
	lds = resources.ListenerType
	rds = resources.RouteType
	ext = resources.ExtensionType
	sec = resources.SecretType
)

// shortTypes holds the types by their short names.
var shortTypes = map[string]string{"cds": cds, "eds": eds, "lds": lds, "rds": rds, "ext": ext, "sec": sec}

// methods holds the methods of the services of one type, by type: incremental
// and state of the world.
var methods = map[string][2]string{
	"":  {"/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources", "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"},
	cds: {"/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters", "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters"},
	eds: {"/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints", "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints"},
	lds: {"/envoy.service.listener.v3.ListenerDiscoveryService/DeltaListeners", "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners"},
	rds: {"/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes", "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes"},
	ext: {"/envoy.service.extension.v3.ExtensionConfigDiscoveryService/DeltaExtensionConfigs", "/envoy.service.extension.v3.ExtensionConfigDiscoveryService/StreamExtensionConfigs"},
	sec: {"/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets", "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets"},
}

// message returns the message of a resource that changes with content.
func message(typ, name string, content int) proto.Message {
	switch typ {
	case cds:
		return &clusterv3.Cluster{
			Name: name, AltStatName: fmt.Sprint(content),
			ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		}
	case eds:
		return &endpointv3.ClusterLoadAssignment{ClusterName: name, NamedEndpoints: map[string]*endpointv3.Endpoint{fmt.Sprint(content): {}}}
	case lds:
		return &listenerv3.Listener{Name: name, StatPrefix: fmt.Sprint(content)}
	case rds:
		return &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{fmt.Sprint(content)}}
	case ext:
		return &corev3.TypedExtensionConfig{Name: name, TypedConfig: &anypb.Any{TypeUrl: fmt.Sprint(content)}}
	default:
		return &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
			Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: fmt.Sprint(content)}},
		}}}
	}
}

// resourceSpec is one resource of a test, such as "cds:a=1".
type resourceSpec struct {
	typ, name string
	content   int
}

func parseResources(t testing.TB, words []string) []resourceSpec {
	t.Helper()
	var all []resourceSpec
	for _, s := range words {
		var w resourceSpec
		typ, rest, _ := strings.Cut(s, ":")
		name, number, _ := strings.Cut(rest, "=")
		if _, err := fmt.Sscan(number, &w.content); err != nil || shortTypes[typ] == "" {
			t.Fatal(s, err)
		}
		w.typ, w.name = shortTypes[typ], name
		all = append(all, w)
	}
	return all
}

// setOf returns a set of resources. A name that begins with "hidden" is unlisted.
func setOf(t testing.TB, words ...string) resources.Set {
	t.Helper()
	var all []*resources.Resource
	for _, w := range parseResources(t, words) {
		r := testkit.Must(resources.Encode(w.typ, w.name, message(w.typ, w.name, w.content)))
		r.Unlisted = strings.HasPrefix(w.name, "hidden")
		all = append(all, r)
	}
	return testkit.Must(resources.NewSet(all...))
}

// testServer serves a cache in memory, with limits.
type testServer struct {
	*server.Server
	conn *grpc.ClientConn
	log  *testkit.Log
}

// startServer serves a configuration; without a cache, an empty one.
func startServer(t *testing.T, cfg server.Config) *testServer {
	t.Helper()
	if cfg.Cache == nil {
		cfg.Cache = cache.New(cache.Config{SecretsFor: func(string) bool { return true }})
	}
	out := new(testkit.Log)
	cfg.Logger = out.Logger()
	s := testkit.Must(server.New(cfg))
	return &testServer{s, serveInMemory(t, s.Register), out}
}

// serveInMemory runs a gRPC server in memory and connects to it.
func serveInMemory(t *testing.T, register func(context.Context, grpc.ServiceRegistrar)) *grpc.ClientConn {
	t.Helper()
	g := grpc.NewServer()
	register(t.Context(), g)
	conn, _ := memgrpc.Serve(t, g)
	return conn
}

// client is a raw stream of either protocol with the responses that came.
type client struct {
	t      *testing.T
	stream grpc.ClientStream
	delta  bool
	typ    string // of its service; "" for all
	node   *corev3.Node
	got    chan proto.Message
	end    chan error

	// State of the world, by type.
	names map[string][]string
	last  map[string]*discoveryv3.DiscoveryResponse
	good  map[string]string // last accepted version
}

// openStream opens a stream of the service of a type, for a node.
func openStream(t *testing.T, conn *grpc.ClientConn, delta bool, typ, node string) *client {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	method := methods[typ][1]
	if delta {
		method = methods[typ][0]
	}
	stream := testkit.Must(conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method))
	c := &client{
		t: t, stream: stream, delta: delta, typ: typ, node: &corev3.Node{Id: node},
		got: make(chan proto.Message, 10000), end: make(chan error, 1),
		names: make(map[string][]string), last: make(map[string]*discoveryv3.DiscoveryResponse), good: make(map[string]string),
	}
	go func() {
		for {
			var m proto.Message = new(discoveryv3.DiscoveryResponse)
			if delta {
				m = new(discoveryv3.DeltaDiscoveryResponse)
			}
			if err := stream.RecvMsg(m); err != nil {
				c.end <- err
				return
			}
			c.got <- m
		}
	}()
	t.Cleanup(func() { stream.CloseSend(); cancel() })
	return c
}

// send sends a request; the first one carries the node.
func (c *client) send(m proto.Message) {
	c.t.Helper()
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		r.Node = c.node
	case *discoveryv3.DiscoveryRequest:
		r.Node = c.node
	}
	c.node = nil
	if err := c.stream.SendMsg(m); err != nil {
		c.t.Logf("send: %v", err) // the end of the stream has the reason
	}
}

// subscribe adds names or, in the state-of-the-world protocol, replaces them.
func (c *client) subscribe(typ string, names ...string) {
	c.t.Helper()
	if c.delta {
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names})
		return
	}
	c.names[typ] = names
	c.repeatRequest(typ, "")
}

func (c *client) unsubscribe(typ string, names ...string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesUnsubscribe: names})
}

// resume subscribes with the versions from an earlier stream.
func (c *client) resume(typ string, versions map[string]string, names ...string) {
	c.t.Helper()
	c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names, InitialResourceVersions: versions})
}

// repeatRequest replies to the last state-of-the-world response.
func (c *client) repeatRequest(typ, refusal string) {
	c.t.Helper()
	r := &discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: c.names[typ], ResponseNonce: c.last[typ].GetNonce(), VersionInfo: c.good[typ]}
	if refusal != "" {
		r.ErrorDetail = &rpcstatus.Status{Code: 13, Message: refusal}
	}
	c.send(r)
}

// ack accepts a response.
func (c *client) ack(m proto.Message) {
	c.t.Helper()
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryResponse:
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
	case *discoveryv3.DiscoveryResponse:
		c.good[r.TypeUrl] = r.VersionInfo
		c.repeatRequest(r.TypeUrl, "")
	}
}

// nack refuses a response.
func (c *client) nack(m proto.Message) {
	c.t.Helper()
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryResponse:
		c.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce, ErrorDetail: &rpcstatus.Status{Code: 13, Message: "no"}})
	case *discoveryv3.DiscoveryResponse:
		c.repeatRequest(r.TypeUrl, "no")
	}
}

// receive waits until all goroutines are blocked, and returns the responses,
// also as text: "name name -removed" for each.
func (c *client) receive() (all []proto.Message, words []string) {
	c.t.Helper()
	synctest.Wait()
	for len(c.got) > 0 {
		m := <-c.got
		all = append(all, m)
		words = append(words, strings.Join(namesIn(m), " "))
		if r, ok := m.(*discoveryv3.DiscoveryResponse); ok {
			c.last[r.TypeUrl] = r
		}
	}
	return all, words
}

// namesIn lists the resources in a response, sorted, and then the removed ones,
// with a "-".
func namesIn(m proto.Message) (names []string) {
	switch r := m.(type) {
	case *discoveryv3.DeltaDiscoveryResponse:
		for _, res := range r.Resources {
			names = append(names, res.Name)
		}
		slices.Sort(names)
		for _, name := range slices.Sorted(slices.Values(r.RemovedResources)) {
			names = append(names, "-"+name)
		}
	case *discoveryv3.DiscoveryResponse:
		for _, a := range r.Resources {
			m, err := a.UnmarshalNew()
			if err != nil {
				return []string{err.Error()}
			}
			names = append(names, gcp.GetResourceName(m))
		}
		slices.Sort(names)
	}
	return names
}

// expect compares the responses.
func (c *client) expect(want ...string) []proto.Message {
	c.t.Helper()
	all, got := c.receive()
	if !slices.Equal(got, want) {
		c.t.Fatalf("responses %q, want %q", got, want)
	}
	return all
}

// expectAck is expect with an ACK of every response.
func (c *client) expectAck(want ...string) {
	c.t.Helper()
	for _, m := range c.expect(want...) {
		c.ack(m)
	}
	c.expect()
}

// endError returns why the stream ended; nil if it has not.
func (c *client) endError() error {
	synctest.Wait()
	select {
	case err := <-c.end:
		return err
	default:
		return nil
	}
}
