package cache_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// memoryStream is a delta stream in memory.
type memoryStream struct {
	grpc.ServerStream
	ctx       context.Context
	requests  chan *discoveryv3.DeltaDiscoveryRequest
	responses chan *discoveryv3.DeltaDiscoveryResponse
}

func (p *memoryStream) Context() context.Context { return p.ctx }

func (p *memoryStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	select {
	case r := <-p.requests:
		return r, nil
	case <-p.ctx.Done():
		return nil, io.EOF
	}
}

func (p *memoryStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	select {
	case p.responses <- r:
		return nil
	case <-p.ctx.Done():
		return errors.New("the client is gone")
	}
}

// TestConcurrency has clients connect, disconnect, acknowledge and refuse while
// sets change. In the end every client that stayed has the last set. It is for
// the race detector.
func TestConcurrency(t *testing.T) {
	t.Run("alone", func(t *testing.T) { concurrency(t, func(context.Context, *cache.Cache) {}) })
	t.Run("run", func(t *testing.T) {
		concurrency(t, func(ctx context.Context, c *cache.Cache) {
			done := make(chan error, 1)
			go func() { done <- c.Run(ctx) }()
			t.Cleanup(func() { <-done })
		})
	})
}

func concurrency(t *testing.T, run func(context.Context, *cache.Cache)) {
	const clients, rounds = 16, 100
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := cache.New(cache.Config{Group: func(n *corev3.Node) string { return n.GetId()[:1] }})
	run(ctx, c)
	server := serverv3.NewServer(ctx, c, nil)
	last := resource(rds, "r", fmt.Sprint(rounds-1)).Version
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for life := range 4 {
				p := &memoryStream{requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 100), responses: make(chan *discoveryv3.DeltaDiscoveryResponse, 100)}
				streamCtx, end := context.WithCancel(ctx)
				p.ctx = streamCtx
				done := make(chan error, 1)
				go func() { done <- server.DeltaStreamHandler(p, "") }()
				p.requests <- &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: fmt.Sprintf("%c%d", 'a'+i%3, i)}, TypeUrl: cds}
				p.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: eds, ResourceNamesSubscribe: []string{"x", "y"}}
				p.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: rds, ResourceNamesSubscribe: []string{"r"}}
				for n := 0; ; n++ {
					r := <-p.responses
					p.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
					if life < 3 && n == 10*i%40 {
						break // disconnects without a reply
					}
					if r.TypeUrl == rds && r.Resources[0].Version == last {
						break
					}
				}
				end()
				<-done
			}
		})
	}
	for i := range rounds {
		s := setOf(t, fmt.Sprintf("cds:a=%d", i/10), fmt.Sprintf("eds:x=%d", i), "eds:y=1", fmt.Sprintf("rds:r=%d", i))
		c.Set("", s)
		if i%7 == 0 {
			c.Set("b", s)
		}
		if i%7 == 3 {
			c.Drop("b")
		}
		c.Unanswered([]string{eds, rds}, map[string]bool{})
		runtime.Gosched()
	}
	c.Drop("b")
	wg.Wait()
	cancel()
	if n := c.Watches(); n != 0 {
		t.Errorf("%d watches left", n)
	}
}

// fleetSet returns the set of a fleet of n replicas in four stages.
func fleetSet(tb testing.TB, n int, cut policies.Tokens) resources.Set {
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1 << 17}}}
	p := policies.Plan{Model: "m", Stages: []policies.Stage{
		{Low: 0, High: cut}, {Low: cut, High: 5000}, {Low: 5000, High: 20000}, {Low: 20000, High: policies.Unbounded},
	}}
	for i := range n {
		id := policies.ReplicaID(fmt.Sprint("replica-", i))
		p.Stages[i%4].Replicas = append(p.Stages[i%4].Replicas, id)
		v.Endpoints = append(v.Endpoints, resources.Endpoint{
			Replica: policies.Replica{ID: id, Model: "m", Address: fmt.Sprintf("10.%d.%d.%d:80", i>>16, i>>8&255, i&255), Host: fmt.Sprint("n", i/8)},
		})
	}
	v.Plans = []policies.Plan{p}
	s, err := resources.Build(v)
	testkit.NoError(tb, err)
	return s
}

// openWatches opens the four watches of an Envoy that has all resources of a
// set.
func openWatches(tb testing.TB, c *cache.Cache, s resources.Set, id string, out chan gcp.DeltaResponse) {
	names := make(map[string]struct{})
	for _, r := range s.All(eds) {
		names[r.Name] = struct{}{}
	}
	for typ, sub := range map[string]fixedVersions{
		cds: {wildcard: true}, lds: {wildcard: true}, eds: {names: names}, rds: {names: map[string]struct{}{resources.RouteName: {}}},
	} {
		sub.versions = make(map[string]string)
		for _, r := range s.All(typ) {
			if _, asked := sub.names[r.Name]; asked || sub.wildcard && !r.Unlisted {
				sub.versions[r.Name] = r.Version
			}
		}
		req := &gcp.DeltaRequest{Node: &corev3.Node{Id: id}, TypeUrl: typ, ResponseNonce: "1"}
		if _, err := c.CreateDeltaWatch(req, sub, out); err != nil {
			tb.Fatal(err)
		}
	}
}

// fixedVersions is the subscription of a client that has some versions.
type fixedVersions struct {
	names    map[string]struct{}
	versions map[string]string
	wildcard bool
}

func (h fixedVersions) SubscribedResources() map[string]struct{} { return h.names }
func (h fixedVersions) ReturnedResources() map[string]string     { return h.versions }
func (h fixedVersions) IsWildcard() bool                         { return h.wildcard }

// BenchmarkSet measures Set alone: one boundary changes under a thousand nodes
// with four watches each, until every node's response is queued.
func BenchmarkSet(b *testing.B) {
	const nodes = 1000
	for _, replicas := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("%d nodes, %d replicas", nodes, replicas), func(b *testing.B) {
			sets := []resources.Set{fleetSet(b, replicas, 1000), fleetSet(b, replicas, 1001)}
			out := make(chan gcp.DeltaResponse, 2*nodes)
			for i := 0; b.Loop(); i++ {
				b.StopTimer()
				c := cache.New(cache.Config{})
				c.Set("", sets[i%2])
				for n := range nodes {
					openWatches(b, c, sets[i%2], fmt.Sprint("node-", n), out)
				}
				b.StartTimer()
				c.Set("", sets[(i+1)%2])
				b.StopTimer()
				if len(out) != nodes {
					b.Fatalf("%d responses", len(out))
				}
				for range nodes {
					<-out
				}
				b.StartTimer()
			}
		})
	}
}

// TestMemoryPerNode bounds what the cache itself keeps for a node, apart from
// the stream and its subscription.
func TestMemoryPerNode(t *testing.T) {
	const nodes, most = 1000, 4 << 10
	s := fleetSet(t, 100, 1000)
	c := cache.New(cache.Config{})
	c.Set("", s)
	out := make(chan gcp.DeltaResponse, 1)
	sub := fixedVersions{names: map[string]struct{}{}, versions: map[string]string{}}
	before := heap()
	for i := range nodes {
		for _, typ := range []string{cds, eds, lds, rds} {
			if _, err := c.CreateDeltaWatch(&gcp.DeltaRequest{Node: &corev3.Node{Id: fmt.Sprint(i)}, TypeUrl: typ, ResponseNonce: "1"}, sub, out); err != nil {
				t.Fatal(err)
			}
		}
	}
	per := (heap() - before) / nodes
	t.Logf("%d bytes a node", per)
	if per > most {
		t.Errorf("%d bytes a node, want at most %d", per, most)
	}
	runtime.KeepAlive(c)
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
