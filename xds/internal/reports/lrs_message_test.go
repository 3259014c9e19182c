package reports

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// fatNode returns a node message as large as an Envoy's.
func fatNode(id string) *corev3.Node {
	n := &corev3.Node{Id: id, Cluster: "edge"}
	for i := range 500 {
		n.Extensions = append(n.Extensions, &corev3.Extension{
			Name: fmt.Sprintf("envoy.filters.http.%d", i), Category: "envoy.filters.http",
			TypeUrls: []string{strings.Repeat("x", 100)},
		})
	}
	return n
}

func address(port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func request(id string, clusters ...*endpointv3.ClusterStats) *loadstatsv3.LoadStatsRequest {
	return &loadstatsv3.LoadStatsRequest{Node: fatNode(id), ClusterStats: clusters}
}

func stats(name string, endpoints ...*endpointv3.UpstreamEndpointStats) *endpointv3.ClusterStats {
	l := &endpointv3.UpstreamLocalityStats{UpstreamEndpointStats: endpoints}
	for _, e := range endpoints {
		l.TotalRequestsInProgress += e.TotalRequestsInProgress
		l.TotalSuccessfulRequests += e.TotalSuccessfulRequests
		l.TotalErrorRequests += e.TotalErrorRequests
		l.TotalIssuedRequests += e.TotalIssuedRequests
	}
	return &endpointv3.ClusterStats{ClusterName: name, UpstreamLocalityStats: []*endpointv3.UpstreamLocalityStats{l}}
}

func on(port uint32, active uint64) *endpointv3.UpstreamEndpointStats {
	return &endpointv3.UpstreamEndpointStats{Address: address(port), TotalRequestsInProgress: active}
}

// unpack decodes a message as gRPC does.
func unpack(t testing.TB, m proto.Message) *message {
	t.Helper()
	b := testkit.Must(proto.Marshal(m))
	f := new(message)
	testkit.NoError(t, proto.Unmarshal(b, protoadapt.MessageV2Of(f)))
	return f
}

// TestProblems: an embedded proxy reports in its metadata what it lacks, bounded; they count as long as
// its last report does.
func TestProblems(t *testing.T) {
	kinds := map[string]any{"descriptors": strings.Repeat("x", 4096), "invented": "?"}
	for i := range 20 {
		kinds[fmt.Sprint("z", i)] = "too many"
	}
	m := request("e1")
	m.Node.Metadata = testkit.Must(structpb.NewStruct(map[string]any{"else": 1, loadreport.ProblemsField: kinds}))
	f := unpack(t, m)
	if len(f.problems) != loadreport.MaxProblems || f.problems[0].Kind != "descriptors" || len(f.problems[0].Text) > 600 || f.problems[1].Kind != "other" {
		t.Errorf("%d problems: %.300v", len(f.problems), f.problems)
	}
	b := NewBook(0, nil)
	stream := b.open(at(0), "e1", "")
	b.report(at(1), stream, nil, f.problems...)
	if got := b.Problems(at(2))["e1"]; len(got) != loadreport.MaxProblems {
		t.Errorf("%v", got)
	}
	b.report(at(2), stream, nil)
	if got := b.Problems(at(2)); len(got) != 0 {
		t.Errorf("after the next report: %v", got)
	}
	b.report(at(3), stream, nil, f.problems...)
	if got := b.Problems(at(7)); len(got) != 0 {
		t.Errorf("of a late report: %v", got)
	}
}

func TestMessage(t *testing.T) {
	full := on(1000, 7)
	full.TotalSuccessfulRequests, full.TotalErrorRequests, full.TotalIssuedRequests = 5, 2, 9
	full.LoadMetricStats = []*endpointv3.EndpointLoadMetricStats{
		{MetricName: "cpu_utilization", NumRequestsFinishedWithMetric: 5, TotalMetricValue: 50},
		{MetricName: resources.ShareMetric, NumRequestsFinishedWithMetric: 4, TotalMetricValue: 1.5},
	}
	lies := on(1001, math.MaxUint64)
	lies.LoadMetricStats = []*endpointv3.EndpointLoadMetricStats{{MetricName: resources.ShareMetric, NumRequestsFinishedWithMetric: 2, TotalMetricValue: math.Inf(1)}}
	noPort := on(0, 3)
	byLocality := stats("cascade/m/s1/rr")
	byLocality.UpstreamLocalityStats[0].TotalRequestsInProgress = 4

	f := unpack(t, request("e1", stats("xds", on(1, 1)), stats("cascade/m/s0/rr", full, lies, noPort), byLocality))
	if f.node.GetId() != "e1" || f.node.GetCluster() != "edge" || len(f.node.Extensions) > 0 || len(f.clusters) != 2 {
		t.Fatalf("%+v", f)
	}
	c := f.clusters[0]
	if c.name != "cascade/m/s0/rr" || c.success != 5 || c.errors != 2 || c.issued != 9 || len(c.endpoints) != 2 {
		t.Errorf("%+v", c)
	}
	want := endpoint{address: netip.MustParseAddrPort("127.0.0.1:1000"), active: 7, answers: 4, share: 1.5, succeeded: 5, failed: 2}
	if c.endpoints[0] != want {
		t.Errorf("%+v, want %+v", c.endpoints[0], want)
	}
	if e := c.endpoints[1]; e.active != maxCount || e.answers != 2 || e.share != 2 {
		t.Errorf("out of bounds: %+v", e)
	}
	if f.clusters[1].unplaced != 4 {
		t.Errorf("by locality: %+v", f.clusters[1])
	}
	if f := unpack(t, &loadstatsv3.LoadStatsRequest{}); f.node != nil || len(f.clusters) != 0 {
		t.Errorf("empty: %+v", f)
	}
}

// TestMessageBounds checks that a message beyond the bounds is refused as a whole.
func TestMessageBounds(t *testing.T) {
	many := &loadstatsv3.LoadStatsRequest{}
	for i := range maxClusters + 1 {
		many.ClusterStats = append(many.ClusterStats, stats(fmt.Sprintf("cascade/m%d/s0/rr", i)))
	}
	for name, m := range map[string]proto.Message{
		"clusters": many,
		"name":     &loadstatsv3.LoadStatsRequest{Node: &corev3.Node{Id: strings.Repeat("x", maxName+1)}},
	} {
		b := testkit.Must(proto.Marshal(m))
		if err := new(message).decode(b); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func FuzzFrame(f *testing.F) {
	for _, m := range []proto.Message{
		&loadstatsv3.LoadStatsRequest{},
		&loadstatsv3.LoadStatsRequest{Node: &corev3.Node{Id: "e", Cluster: "c"}, ClusterStats: []*endpointv3.ClusterStats{stats("cascade/m/s0/rr", on(7, 3)), stats("x", on(8, 1))}},
	} {
		b := testkit.Must(proto.Marshal(m))
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := new(message)
		if got.decode(b) != nil {
			return
		}
		for _, c := range got.clusters {
			if c.unplaced < 0 || c.unplaced > maxCount {
				t.Fatalf("%+v", c)
			}
			for _, e := range c.endpoints {
				if e.active < 0 || e.active > maxCount || !(e.share >= 0 && e.share <= float64(e.answers)) || !e.address.IsValid() {
					t.Fatalf("%+v", e)
				}
			}
		}
		// Messages that the generated code can decode too must be decoded alike.
		var want loadstatsv3.LoadStatsRequest
		if proto.Unmarshal(b, &want) != nil {
			return
		}
		ours := 0
		for _, c := range want.GetClusterStats() {
			if isOurs(c.GetClusterName()) {
				ours++
			}
		}
		if len(got.clusters) != ours || got.node.GetId() != want.GetNode().GetId() {
			t.Fatalf("%d clusters of %q, want %d of %q", len(got.clusters), got.node.GetId(), ours, want.GetNode().GetId())
		}
	})
}

// BenchmarkFrame compares this decoder with the generated code, which also decodes the
// node.
func BenchmarkFrame(b *testing.B) {
	m := request("e1")
	for i := range 100 {
		m.ClusterStats = append(m.ClusterStats, stats("cascade/m/s0/rr", on(uint32(i+1), 3)))
	}
	raw := testkit.Must(proto.Marshal(m))
	b.Run("by hand", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			testkit.NoError(b, new(message).decode(raw))
		}
	})
	b.Run("generated", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			testkit.NoError(b, proto.Unmarshal(raw, new(loadstatsv3.LoadStatsRequest)))
		}
	})
}
