package cache_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Short names of the types in the tests below.
const (
	cds = resources.ClusterType
	eds = resources.EndpointType
	lds = resources.ListenerType
	rds = resources.RouteType
	ext = resources.ExtensionType
)

// resource returns a resource whose version changes with content. A name that
// begins with "hidden" is unlisted.
func resource(t testing.TB, typ, name string, content int) *resources.Resource {
	t.Helper()
	var m proto.Message
	switch typ {
	case cds:
		m = &clusterv3.Cluster{Name: name, AltStatName: fmt.Sprint(content)}
	case eds:
		m = &endpointv3.ClusterLoadAssignment{ClusterName: name, NamedEndpoints: map[string]*endpointv3.Endpoint{fmt.Sprint(content): {}}}
	case lds:
		m = &listenerv3.Listener{Name: name, StatPrefix: fmt.Sprint(content)}
	case rds:
		m = &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{fmt.Sprint(content)}}
	case ext:
		m = &corev3.TypedExtensionConfig{Name: name, TypedConfig: &anypb.Any{TypeUrl: fmt.Sprint(content)}}
	}
	r, err := resources.Encode(typ, name, m)
	if err != nil {
		t.Fatal(err)
	}
	r.Unlisted = strings.HasPrefix(name, "hidden")
	return r
}

// setOf returns a set of resources such as "cds:a=1".
func setOf(t testing.TB, words ...string) resources.Set {
	t.Helper()
	types := map[string]string{"cds": cds, "eds": eds, "lds": lds, "rds": rds, "ext": ext}
	var all []*resources.Resource
	for _, w := range words {
		var content int
		typ, rest, _ := strings.Cut(w, ":")
		name, number, _ := strings.Cut(rest, "=")
		if _, err := fmt.Sscan(number, &content); err != nil {
			t.Fatal(w, err)
		}
		all = append(all, resource(t, types[typ], name, content))
	}
	s, err := resources.NewSet(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// startServer runs go-control-plane's server over a cache inside the bubble and
// returns a client connection.
func startServer(t *testing.T, c gcp.Cache) *grpc.ClientConn {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, c, nil, sotw.WithOrderedADS()))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bufconn",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// testBothModes runs a test with a cache that sends updates in Set, and with
// one that sends them in Run.
func testBothModes(t *testing.T, cfg cache.Config, f func(t *testing.T, c *cache.Cache)) {
	synctest.Test(t, func(t *testing.T) { f(t, cache.New(cfg)) })
	synctest.Test(t, func(t *testing.T) {
		c := cache.New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Run(ctx) }()
		synctest.Wait()
		f(t, c)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// deltaClient is a raw delta ADS stream with the responses that came.
type deltaClient struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	got    chan *discoveryv3.DeltaDiscoveryResponse
	node   *corev3.Node
}

func openDelta(t *testing.T, conn *grpc.ClientConn, id string) *deltaClient {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.CloseSend() })
	return &deltaClient{t: t, stream: stream, got: receiveAll(stream.Recv), node: &corev3.Node{Id: id}}
}

// receiveAll receives from a stream until it ends, and then closes the channel.
func receiveAll[R any](recv func() (R, error)) chan R {
	got := make(chan R, 10000)
	go func() {
		defer close(got)
		for {
			r, err := recv()
			if err != nil {
				return
			}
			got <- r
		}
	}()
	return got
}

// received waits until all goroutines are blocked and returns what has come.
func received[R any](t *testing.T, got chan R) (all []R) {
	t.Helper()
	synctest.Wait()
	for len(got) > 0 {
		r, ok := <-got
		if !ok {
			t.Fatal("stream ended")
		}
		all = append(all, r)
	}
	return all
}

func (d *deltaClient) send(r *discoveryv3.DeltaDiscoveryRequest) {
	d.t.Helper()
	r.Node, d.node = d.node, nil
	if err := d.stream.Send(r); err != nil {
		d.t.Fatal(err)
	}
}

func (d *deltaClient) subscribe(typ string, names ...string) {
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names})
}

func (d *deltaClient) ack(r *discoveryv3.DeltaDiscoveryResponse) {
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce})
}

func (d *deltaClient) nack(r *discoveryv3.DeltaDiscoveryResponse) {
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce, ErrorDetail: &rpcstatus.Status{Code: 13, Message: "no"}})
}

// expect waits until all goroutines are blocked and compares the responses,
// each as "name name -removed".
func (d *deltaClient) expect(want ...string) []*discoveryv3.DeltaDiscoveryResponse {
	d.t.Helper()
	all := received(d.t, d.got)
	var got []string
	for _, r := range all {
		var words []string
		for _, res := range r.Resources {
			words = append(words, res.Name)
		}
		for _, name := range r.RemovedResources {
			words = append(words, "-"+name)
		}
		got = append(got, strings.Join(words, " "))
	}
	if !slices.Equal(got, want) {
		d.t.Fatalf("responses %q, want %q", got, want)
	}
	return all
}

// expectAck is expect with an ACK of every response.
func (d *deltaClient) expectAck(want ...string) {
	d.t.Helper()
	for _, r := range d.expect(want...) {
		d.ack(r)
	}
	d.expect()
}

func TestDelta(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, c *cache.Cache, d *deltaClient){
		"wildcard": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "cds:a=1", "cds:b=1", "cds:hidden=1"))
			d.subscribe(cds)
			d.expectAck("a b")
			c.Set("", setOf(t, "cds:a=1", "cds:b=2", "cds:hidden=2"))
			d.expectAck("b")
			c.Set("", setOf(t, "cds:b=2", "cds:c=1"))
			d.expectAck("c -a")
		},
		"an unchanged set sends nothing": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "cds:a=1", "eds:x=1"))
			d.subscribe(cds)
			d.subscribe(eds, "x")
			d.expectAck("a", "x")
			for range 10 {
				c.Set("", setOf(t, "cds:a=1", "eds:x=1"))
			}
			d.expect()
		},
		"by name": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "eds:x=1", "eds:y=1", "eds:hidden=1"))
			d.subscribe(eds, "x", "hidden")
			d.expectAck("hidden x")
			c.Set("", setOf(t, "eds:x=1", "eds:y=2", "eds:hidden=1"))
			d.expect() // it does not subscribe to y
			d.subscribe(eds, "y")
			d.expectAck("y")
			c.Set("", setOf(t, "eds:x=2", "eds:y=3", "eds:hidden=1"))
			d.expectAck("x y")
		},
		"unsubscribe": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "eds:x=1", "eds:y=1"))
			d.subscribe(eds, "x", "y")
			d.expectAck("x y")
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesUnsubscribe: []string{"x"}})
			d.expect()
			c.Set("", setOf(t, "eds:x=2", "eds:y=1"))
			d.expect()
			d.subscribe(eds, "x")
			d.expectAck("x")
		},
		"a resubscription gets a response although nothing changed": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "eds:x=1"))
			d.subscribe(eds, "x")
			d.expectAck("x")
			d.subscribe(eds, "x")
			d.expectAck("x")
		},
		"a name that does not exist is removed once": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "eds:x=1"))
			d.subscribe(ext, "slot")
			d.expectAck("-slot")
			c.Set("", setOf(t, "eds:x=2"))
			d.expect()
			c.Set("", setOf(t, "eds:x=2", "ext:slot=1"))
			d.expectAck("slot")
			c.Set("", setOf(t, "eds:x=2"))
			d.expectAck("-slot")
			c.Set("", setOf(t, "eds:x=3"))
			d.expect()
		},
		"removal": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "eds:x=1", "eds:y=1"))
			d.subscribe(eds, "x", "y")
			d.expectAck("x y")
			c.Set("", setOf(t, "eds:y=1"))
			d.expectAck("-x")
			c.Set("", setOf(t, "eds:y=1", "eds:x=1")) // the same bytes again are a change
			d.expectAck("x")
		},
		"a refused version is not sent again": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "rds:r=1"))
			d.subscribe(rds, "r")
			d.expectAck("r")
			c.Set("", setOf(t, "rds:r=2"))
			for _, r := range d.expect("r") {
				d.nack(r)
			}
			d.expect()
			c.Set("", setOf(t, "rds:r=2", "rds:other=1"))
			d.expect()
			c.Set("", setOf(t, "rds:r=1"))
			d.expectAck("r")
		},
		"changes before the reply are one response": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "rds:r=1"))
			d.subscribe(rds, "r")
			first := d.expect("r")
			for i := 2; i < 50; i++ {
				c.Set("", setOf(t, fmt.Sprintf("rds:r=%d", i)))
			}
			d.expect()
			d.ack(first[0])
			last := d.expect("r")
			if want := resource(t, rds, "r", 49).Version; last[0].Resources[0].Version != want {
				t.Errorf("version %s, want the newest, %s", last[0].Resources[0].Version, want)
			}
		},
		"a restart sends nothing again": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "cds:a=1", "cds:b=2", "eds:x=1", "eds:y=2"))
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, InitialResourceVersions: map[string]string{
				"a": resource(t, cds, "a", 1).Version, "b": resource(t, cds, "b", 2).Version,
			}})
			d.expectAck("") // the initial empty response
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: []string{"x", "y"}, InitialResourceVersions: map[string]string{
				"x": resource(t, eds, "x", 1).Version, "y": resource(t, eds, "y", 1).Version,
			}})
			d.expectAck("y")
			c.Set("", setOf(t, "cds:b=2", "eds:x=1", "eds:y=2"))
			d.expectAck("-a")
		},
		"a resource that disappeared between streams is removed": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "cds:b=1"))
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, InitialResourceVersions: map[string]string{"a": "v", "b": resource(t, cds, "b", 1).Version}})
			d.expectAck("-a")
		},
		"before the first set all clients wait": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			d.subscribe(cds)
			d.subscribe(eds, "x")
			d.subscribe(ext, "slot")
			d.subscribe(lds)
			d.expect()
			c.Set("", setOf(t, "cds:a=1", "eds:x=1"))
			d.expectAck("a", "x", "", "-slot")
		},
		"one set is sent in order": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "cds:a=1", "eds:x=1", "lds:l=1", "rds:r=1"))
			d.subscribe(rds, "r")
			d.subscribe(lds)
			d.subscribe(eds, "x")
			d.subscribe(cds)
			d.expectAck("r", "l", "x", "a")
			c.Set("", setOf(t, "cds:a=2", "eds:x=2", "lds:l=2", "rds:r=2"))
			d.expectAck("a", "x", "l", "r")
		},
		"explicit wildcard": func(t *testing.T, c *cache.Cache, d *deltaClient) {
			c.Set("", setOf(t, "cds:a=1", "cds:b=1", "cds:hidden=1"))
			d.subscribe(cds, "*", "hidden")
			d.expectAck("a b hidden")
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesUnsubscribe: []string{"hidden"}})
			d.expectAck("-hidden") // the wildcard does not cover it
			d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResourceNamesUnsubscribe: []string{"*"}})
			d.expect()
			c.Set("", setOf(t, "cds:a=2", "cds:b=2", "cds:hidden=2"))
			d.expect()
		},
	} {
		t.Run(name, func(t *testing.T) {
			testBothModes(t, cache.Config{}, func(t *testing.T, c *cache.Cache) { f(t, c, openDelta(t, startServer(t, c), "n")) })
		})
	}
}

// sotwClient is a raw state-of-the-world ADS stream.
type sotwClient struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	got    chan *discoveryv3.DiscoveryResponse
	names  map[string][]string
	last   map[string]*discoveryv3.DiscoveryResponse // by type
	good   map[string]string                         // last accepted version
}

func openSotW(t *testing.T, conn *grpc.ClientConn, id string) *sotwClient {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.CloseSend() })
	return &sotwClient{
		t: t, stream: stream, got: receiveAll(stream.Recv),
		names: make(map[string][]string), last: make(map[string]*discoveryv3.DiscoveryResponse), good: make(map[string]string),
	}
}

func (d *sotwClient) send(typ string, nack bool) {
	d.t.Helper()
	r := &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "n"}, TypeUrl: typ, ResourceNames: d.names[typ],
		ResponseNonce: d.last[typ].GetNonce(), VersionInfo: d.good[typ],
	}
	if nack {
		r.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "no"}
	}
	if err := d.stream.Send(r); err != nil {
		d.t.Fatal(err)
	}
}

func (d *sotwClient) subscribe(typ string, names ...string) {
	d.names[typ] = names
	d.send(typ, false)
}

// expect compares the names in the responses.
func (d *sotwClient) expect(want ...string) {
	d.t.Helper()
	var got []string
	for _, r := range received(d.t, d.got) {
		d.last[r.TypeUrl] = r
		var names []string
		for _, a := range r.Resources {
			m, err := a.UnmarshalNew()
			if err != nil {
				d.t.Fatal(err)
			}
			names = append(names, gcp.GetResourceName(m))
		}
		got = append(got, strings.Join(names, " "))
	}
	if !slices.Equal(got, want) {
		d.t.Fatalf("responses %q, want %q", got, want)
	}
}

func (d *sotwClient) expectAck(typ string, want ...string) {
	d.t.Helper()
	d.expect(want...)
	d.good[typ] = d.last[typ].VersionInfo
	d.send(typ, false)
	d.expect()
}

func TestSotW(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, c *cache.Cache, d *sotwClient){
		"wildcard": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			c.Set("", setOf(t, "cds:a=1", "cds:b=1", "cds:hidden=1"))
			d.subscribe(cds)
			d.expectAck(cds, "a b")
			c.Set("", setOf(t, "cds:a=2", "cds:b=1", "cds:hidden=2"))
			d.expectAck(cds, "a b") // a response always lists all clusters
			c.Set("", setOf(t, "cds:b=1"))
			d.expectAck(cds, "b")
		},
		"by name": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			c.Set("", setOf(t, "lds:hidden=1", "lds:l=1", "rds:r=1", "rds:s=1", "cds:a=1", "cds:b=1", "eds:x=1", "eds:y=1"))
			d.subscribe(lds, "hidden")
			d.expectAck(lds, "hidden")
			d.subscribe(rds, "r")
			d.expectAck(rds, "r")
			d.subscribe(cds, "a")
			d.expectAck(cds, "a")
			d.subscribe(cds, "a", "b")
			d.expectAck(cds, "a b")
			d.subscribe(eds, "x")
			d.expectAck(eds, "x")
			d.subscribe(eds, "x", "y")
			d.expectAck(eds, "y") // a response lists changed endpoints only
			c.Set("", setOf(t, "lds:hidden=1", "lds:l=2", "rds:r=1", "rds:s=2", "cds:a=1", "cds:b=1", "eds:x=2", "eds:y=1"))
			d.expectAck(eds, "x")
		},
		"after a refused version comes only another one": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			c.Set("", setOf(t, "rds:r=1", "cds:a=1"))
			for _, typ := range []string{rds, cds} {
				d.subscribe(typ, map[string]string{rds: "r", cds: "a"}[typ])
				d.expectAck(typ, map[string]string{rds: "r", cds: "a"}[typ])
			}
			c.Set("", setOf(t, "rds:r=2", "cds:a=2"))
			d.expect("a", "r")
			for range 100 { // repeated requests get no response
				d.send(rds, true)
				d.send(cds, true)
			}
			d.expect()
			c.Set("", setOf(t, "rds:r=2", "cds:a=2", "eds:x=1"))
			d.expect()
			c.Set("", setOf(t, "rds:r=3", "cds:a=1", "eds:x=1"))
			d.expect("a", "r")
		},
		"names that do not exist": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			c.Set("", setOf(t, "cds:a=1"))
			d.subscribe(cds, "unknown")
			d.expectAck(cds, "") // the empty list removes them
			d.subscribe(eds, "x")
			d.expect() // an empty list would not remove them
			c.Set("", setOf(t, "cds:a=1", "eds:x=1"))
			d.expectAck(eds, "x")
			c.Set("", setOf(t, "cds:a=1"))
			d.expect() // nor would a missing resource: the client keeps what it had
			c.Set("", setOf(t, "cds:a=1", "eds:x=1"))
			d.expect()
			c.Set("", setOf(t, "cds:a=1", "eds:x=2"))
			d.expectAck(eds, "x")
		},
		"unsubscribe and resubscribe": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			c.Set("", setOf(t, "eds:x=1", "eds:y=1"))
			d.subscribe(eds, "x", "y")
			d.expectAck(eds, "x y")
			d.subscribe(eds, "x")
			d.expect()
			d.subscribe(eds, "x", "y")
			d.expectAck(eds, "y")
		},
		"before the first set all clients wait": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			d.subscribe(lds, "l")
			d.subscribe(rds, "r")
			d.expect()
			c.Set("", setOf(t, "rds:r=1"))
			d.expect("", "r")
		},
		"a new stream is sent everything": func(t *testing.T, c *cache.Cache, d *sotwClient) {
			// gRPC clients start a timer for every name on a new stream, and
			// take a resource for removed if no response comes.
			c.Set("", setOf(t, "rds:r=1"))
			digest := cache.Digest([]*resources.Resource{resource(t, rds, "r", 1)})
			d.good[rds] = digest
			d.subscribe(rds, "r")
			d.expect("r")
			if got := d.last[rds].VersionInfo; got != digest {
				t.Errorf("version %q, want %q", got, digest)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			testBothModes(t, cache.Config{}, func(t *testing.T, c *cache.Cache) { f(t, c, openSotW(t, startServer(t, c), "n")) })
		})
	}
}

func TestGroups(t *testing.T) {
	byFirstLetter := cache.Config{Group: func(n *corev3.Node) string { return n.GetId()[:1] }}
	testBothModes(t, byFirstLetter, func(t *testing.T, c *cache.Cache) {
		conn := startServer(t, c)
		a, b := openDelta(t, conn, "a1"), openDelta(t, conn, "b1")
		for _, d := range []*deltaClient{a, b} {
			d.subscribe(rds, "r")
			d.expect()
		}
		c.Set("", setOf(t, "rds:r=1"))
		a.expectAck("r")
		b.expectAck("r")
		c.Set("a", setOf(t, "rds:r=2")) // the canary
		a.expectAck("r")
		b.expect()
		c.Set("", setOf(t, "rds:r=2"))
		a.expect()
		b.expectAck("r")
		c.Set("", setOf(t, "rds:r=3"))
		b.expectAck("r")
		a.expect()
		c.Drop("a")
		a.expectAck("r")
		c.Drop("a")
		c.Drop("")
		b.expect()
	})
}

// TestSharedBytes checks that nodes and sets share one encoding.
func TestSharedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache.New(cache.Config{})
		c.Set("", setOf(t, "eds:x=1"))
		sub := fixedSubscription{named: map[string]struct{}{"x": {}}}
		bytesOf := func() *byte {
			out := make(chan gcp.DeltaResponse, 1)
			if _, err := c.CreateDeltaWatch(&gcp.DeltaRequest{TypeUrl: eds}, sub, out); err != nil {
				t.Fatal(err)
			}
			m, err := (<-out).GetDeltaDiscoveryResponse()
			if err != nil {
				t.Fatal(err)
			}
			return &m.Resources[0].Resource.Value[0]
		}
		first := bytesOf()
		c.Set("", setOf(t, "eds:x=1", "eds:y=1")) // encoded again by the caller
		c.Set("g", setOf(t, "eds:x=1"))
		if bytesOf() != first {
			t.Error("unchanged resource has other bytes")
		}
	})
}

// fixedSubscription is a subscription for tests without a stream.
type fixedSubscription struct {
	named    map[string]struct{}
	wildcard bool
}

func (s fixedSubscription) SubscribedResources() map[string]struct{} { return s.named }
func (s fixedSubscription) ReturnedResources() map[string]string     { return nil }
func (s fixedSubscription) IsWildcard() bool                         { return s.wildcard }

func TestStreamsRemoveWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cache.New(cache.Config{})
		c.Set("", setOf(t, "cds:a=1", "eds:x=1"))
		conn := startServer(t, c)
		for range 10 {
			d := openDelta(t, conn, "n")
			d.subscribe(cds)
			d.subscribe(eds, "x")
			d.expectAck("a", "x")
			if c.Watches() != 2 {
				t.Fatalf("%d watches", c.Watches())
			}
			d.stream.CloseSend()
			synctest.Wait()
			if c.Watches() != 0 {
				t.Fatalf("%d watches left", c.Watches())
			}
		}
	})
}

// TestUnanswered checks that a node is unanswered from Set until its reply, so
// that a publisher never takes an older ACK for it.
func TestUnanswered(t *testing.T) {
	testBothModes(t, cache.Config{}, func(t *testing.T, c *cache.Cache) {
		conn := startServer(t, c)
		d, w := openDelta(t, conn, "d"), openSotW(t, conn, "n")
		unanswered := func(want ...string) {
			t.Helper()
			ids := make(map[string]bool)
			c.Unanswered([]string{eds, rds}, ids)
			if got := slices.Sorted(maps.Keys(ids)); !slices.Equal(got, want) {
				t.Fatalf("unanswered %q, want %q", got, want)
			}
		}
		d.subscribe(eds, "x")
		d.subscribe(cds)
		w.subscribe(eds, "x")
		d.expect()
		unanswered()
		c.Set("", setOf(t, "eds:x=1"))
		unanswered("d", "n") // before a response was sent
		d.expectAck("", "x")
		unanswered("n")
		w.expectAck(eds, "x")
		unanswered()
		c.Set("", setOf(t, "eds:x=2"))
		c.Set("", setOf(t, "eds:x=1")) // both have x=1, but x=2 is on its way
		unanswered("d", "n")
		for _, r := range d.expect("x") {
			d.nack(r)
		}
		w.expect("x")
		synctest.Wait()
		unanswered("d", "n") // x=1 again
		d.stream.CloseSend()
		w.stream.CloseSend()
		synctest.Wait()
		unanswered()
		select {
		case <-c.Changed():
		default:
			t.Error("Changed was not signalled")
		}
	})
}

func TestFetch(t *testing.T) {
	c := cache.New(cache.Config{})
	req := &discoveryv3.DiscoveryRequest{TypeUrl: eds, ResourceNames: []string{"x"}}
	r, err := c.Fetch(t.Context(), req)
	if err != nil || len(r.GetReturnedResources()) != 0 {
		t.Fatal(r, err)
	}
	c.Set("", setOf(t, "eds:x=1", "eds:y=1"))
	if r, err = c.Fetch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if got := slices.Collect(maps.Keys(r.GetReturnedResources())); !slices.Equal(got, []string{"x"}) {
		t.Fatal(got)
	}
	req.VersionInfo = r.GetResponseVersion()
	if r, err := c.Fetch(t.Context(), req); err == nil {
		t.Fatal("resource sent again", r)
	}
}
