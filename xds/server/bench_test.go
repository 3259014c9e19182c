package server_test

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	gcp "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/server"
)

// fleetSet returns the set of a fleet of n replicas in four stages.
func fleetSet(tb testing.TB, n int, cut policies.Tokens) resources.Set {
	tb.Helper()
	return testkit.Must(resources.Build(fleetView(n, cut)))
}

// fleetView returns the view of that fleet. The end of the first stage is also
// the epoch of its plan.
func fleetView(n int, cut policies.Tokens) resources.View {
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1 << 17}}}
	p := policies.Plan{Model: "m", Epoch: policies.Epoch(cut), Stages: []policies.Stage{
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
	return v
}

// subscriptionWords returns the subscribe command by which clients subscribe to
// a set as an Envoy does.
func subscriptionWords(s resources.Set) []string {
	names := func(typ string) string {
		var all []string
		for _, r := range s.All(typ) {
			if !r.Unlisted {
				all = append(all, r.Name)
			}
		}
		return strings.Join(all, ",")
	}
	return []string{"cds", "eds=" + names(eds), "lds", "rds=" + resources.RouteName}
}

// meter counts what a gRPC server sends and receives.
type meter struct {
	sent, got, resources atomic.Int64
	want                 atomic.Int64 // messages each way
	lastSent, lastGot    atomic.Int64 // UnixNano, of the last one expected
	done                 chan struct{}
}

var _ stats.Handler = (*meter)(nil)

func (m *meter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (m *meter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (m *meter) HandleConn(context.Context, stats.ConnStats)                       {}

func (m *meter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InPayload); ok && m.got.Add(1) == m.want.Load() {
		m.lastGot.Store(time.Now().UnixNano())
		close(m.done)
	}
}

// intercept counts responses before they are sent.
func (m *meter) intercept(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, meteredStream{ss, m})
}

// meteredStream is a stream whose responses are counted before they are sent:
// gRPC's own event comes afterwards, when the client may have acknowledged
// them.
type meteredStream struct {
	grpc.ServerStream
	meter *meter
}

func (s meteredStream) SendMsg(r any) error {
	s.meter.resources.Add(int64(len(r.(*discoveryv3.DeltaDiscoveryResponse).Resources)))
	last := s.meter.sent.Add(1) == s.meter.want.Load()
	err := s.ServerStream.SendMsg(r)
	if last {
		s.meter.lastSent.Store(time.Now().UnixNano())
	}
	return err
}

// arm resets the meter for n messages each way.
func (m *meter) arm(n int) {
	m.sent.Store(0)
	m.got.Store(0)
	m.resources.Store(0)
	m.done = make(chan struct{})
	m.want.Store(int64(n))
}

// benchServer is a server that is measured: ours, or the stock one.
type benchServer struct {
	name    string
	address string
	meter   *meter
	set     func(i int) // applies one of the sets
}

// listen runs a gRPC server on a socket until the end of the test.
func listen(tb testing.TB, m *meter, register func(context.Context, grpc.ServiceRegistrar), opts ...grpc.ServerOption) string {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	if m != nil {
		opts = append(opts, grpc.StatsHandler(m), grpc.StreamInterceptor(m.intercept))
	}
	server := grpc.NewServer(opts...)
	register(ctx, server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	tb.Cleanup(func() {
		cancel()
		server.Stop()
		if err := <-done; err != nil {
			tb.Error(err)
		}
	})
	return l.Addr().String()
}

// newServer returns this package with the ledger, over our cache.
func newServer(tb testing.TB, m *meter, sets []resources.Set) *benchServer {
	tb.Helper()
	c := cache.New(cache.Config{})
	s := testkit.Must(server.New(server.Config{Cache: c, Callbacks: publish.NewLedger(nil)}))
	return &benchServer{"ours", listen(tb, m, s.Register, server.Options()...), m, func(i int) { c.Set("", sets[i]) }}
}

// newStockServer returns go-control-plane's server over its snapshot cache,
// with one snapshot for all nodes. The hash decides for how many node ids the
// snapshot has to be set.
func newStockServer(tb testing.TB, m *meter, name string, hash gcp.NodeHash, nodes []string, sets []resources.Set) *benchServer {
	tb.Helper()
	c := gcp.NewSnapshotCache(true, hash, nil)
	var snapshots []*gcp.Snapshot
	for _, s := range sets {
		snapshots = append(snapshots, snapshotOf(tb, s))
	}
	address := listen(tb, m, func(ctx context.Context, g grpc.ServiceRegistrar) {
		server := serverv3.NewServer(ctx, c, nil)
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, server)
	})
	return &benchServer{name, address, m, func(i int) {
		for _, id := range nodes {
			if err := c.SetSnapshot(context.Background(), id, snapshots[i]); err != nil {
				tb.Error(err)
			}
		}
	}}
}

// snapshotOf returns the stock cache's snapshot of a set: its listed resources
// with their versions, which the stock cache would otherwise compute while it
// publishes.
func snapshotOf(tb testing.TB, s resources.Set) *gcp.Snapshot {
	tb.Helper()
	all := make(map[string][]types.Resource)
	for _, typ := range s.Types() {
		for _, r := range s.All(typ) {
			if r.Unlisted || typ == resources.RoutingType { // the stock cache does not know it
				continue
			}
			all[typ] = append(all[typ], testkit.Must((&anypb.Any{TypeUrl: r.Type, Value: r.Body}).UnmarshalNew()))
		}
	}
	snapshot, err := gcp.NewSnapshot(s.Get(rds, resources.RouteName).Version, all)
	if err == nil {
		err = snapshot.ConstructVersionMap()
	}
	testkit.NoError(tb, err)
	return snapshot
}

// oneHash gives all nodes one snapshot.
type oneHash struct{}

func (oneHash) ID(*corev3.Node) string { return "all" }

// sample is the measurement of one change.
type sample struct {
	publish, queued, acked time.Duration
	allocs                 uint64
}

// measureChange applies a set and waits until n nodes have acknowledged its changed resources.
func (p *benchServer) measureChange(tb testing.TB, i, n, changed int) sample {
	tb.Helper()
	p.meter.arm(n)
	var before, after runtime.MemStats
	runtime.GC() // garbage of earlier rounds does not count
	runtime.ReadMemStats(&before)
	start := time.Now()
	p.set(i)
	published := time.Since(start)
	select {
	case <-p.meter.done:
	case <-time.After(time.Minute):
		tb.Fatalf("%s: %d sent, %d acknowledged of %d", p.name, p.meter.sent.Load(), p.meter.got.Load(), n)
	}
	runtime.ReadMemStats(&after)
	if sent, rs := p.meter.sent.Load(), p.meter.resources.Load(); sent != int64(n) || rs != int64(n*changed) {
		tb.Errorf("%s: %d resources changed: %d responses with %d resources to %d nodes", p.name, changed, sent, rs, n)
	}
	since := func(nano *atomic.Int64) time.Duration { return time.Unix(0, nano.Load()).Sub(start) }
	return sample{published, since(&p.meter.lastSent), since(&p.meter.lastGot), after.Mallocs - before.Mallocs}
}

// median returns the median of f over the samples.
func median[T cmp.Ordered](all []sample, f func(sample) T) T {
	values := make([]T, 0, len(all))
	for _, s := range all {
		values = append(values, f(s))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// BenchmarkBoundary changes one boundary of a fleet of a thousand replicas
// under real delta ADS streams from another process: ours and
// go-control-plane's snapshot cache, with a snapshot per node (its usual form)
// and with one for all, in turn. One iteration is one change on each.
func BenchmarkBoundary(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprint(n, " nodes"), func(b *testing.B) {
			sets := []resources.Set{fleetSet(b, 1000, 1000), fleetSet(b, 1000, 1001)}
			planes := startComparison(b, n, sets)
			samples := make([][]sample, len(planes))
			for i := 1; b.Loop(); i++ {
				for j, p := range planes {
					samples[j] = append(samples[j], p.measureChange(b, i%2, n, 1))
				}
			}
			for j, p := range planes {
				ms := func(f func(sample) time.Duration) float64 { return float64(median(samples[j], f)) / 1e6 }
				ratio := func(f func(sample) time.Duration) float64 {
					return float64(median(samples[j], f)) / float64(median(samples[0], f))
				}
				queued, acked := func(s sample) time.Duration { return s.queued }, func(s sample) time.Duration { return s.acked }
				b.ReportMetric(ms(func(s sample) time.Duration { return s.publish }), p.name+"-publish-ms")
				b.ReportMetric(ms(queued), p.name+"-queued-ms")
				b.ReportMetric(ms(acked), p.name+"-acked-ms")
				b.ReportMetric(float64(median(samples[j], func(s sample) uint64 { return s.allocs }))/float64(n), p.name+"-allocs/node")
				if j > 0 {
					b.ReportMetric(ratio(queued), p.name+"-queued-ratio")
					b.ReportMetric(ratio(acked), p.name+"-acked-ratio")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// startComparison returns our server and go-control-plane's, each with n clients that have
// the first of the sets.
func startComparison(tb testing.TB, n int, sets []resources.Set) []*benchServer {
	tb.Helper()
	var nodes []string
	for i := range n {
		nodes = append(nodes, fmt.Sprint("node-", i))
	}
	planes := []*benchServer{
		newServer(tb, new(meter), sets),
		newStockServer(tb, new(meter), "stock", gcp.IDHash{}, nodes, sets),
		newStockServer(tb, new(meter), "stock-one", oneHash{}, []string{"all"}, sets),
	}
	c := startClientProcess(tb)
	for _, p := range planes {
		p.meter.arm(1 << 30)
		p.set(0)
		c.command("connect", p.address, fmt.Sprint(n))
		c.command(append([]string{"subscribe", p.address}, subscriptionWords(sets[0])...)...)
		settle(tb, p.meter, 8*n)
	}
	return planes
}

// settle waits until a server has received n requests.
func settle(tb testing.TB, m *meter, n int) {
	tb.Helper()
	testkit.WaitForValue(tb, fmt.Sprint(n, " requests"), m.got.Load, func(got int64) bool { return got >= int64(n) })
}
