package control

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	loadstatsv3 "github.com/envoyproxy/go-control-plane/envoy/service/load_stats/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// TestAttackInventedProxy has a client that is not among the fleet's proxies refuse
// everything that it is sent, also what all others run, and report failures. Plans go on,
// no plan is rolled back, and the reports are refused.
func TestAttackInventedProxy(t *testing.T) {
	f := newFakeFleet(t, 8)
	c := startControl(t, Config{Rules: fastRules(), Replicas: f.list, Proxies: []string{"proxy-1"}})
	p := newProxy(t, c)
	p.waitFor(t, "the first plan", func(s *routing.Snapshot) bool { _, ok := plan(s); return ok })
	invented := openDelta(t, c)
	for i, typ := range []string{resources.ClusterType, resources.ListenerType, resources.RouteType, resources.EndpointType} {
		r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ}
		if i == 0 {
			r.Node = &corev3.Node{Id: "invented"}
		}
		if typ == resources.RouteType {
			r.ResourceNamesSubscribe = []string{resources.RouteName}
		}
		for k := range policies.MaxStages {
			if typ == resources.EndpointType {
				r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, resources.EndpointName("m", k))
			}
		}
		invented.send(t, r)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := invented.stream.Recv()
			if err != nil {
				return
			}
			_ = invented.stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), ErrorDetail: &rpcstatus.Status{Code: 3, Message: "no"}})
		}
	}()
	waitFor(t, c, "refusals", func(s Status) bool {
		return len(s.Nodes) == 2 && s.Nodes[0].ID == "invented" && s.Nodes[0].NACKs > 0 && s.Nodes[0].Unlisted
	})
	reports := testkit.Must(loadstatsv3.NewLoadReportingServiceClient(dial(t, c)).StreamLoadStats(t.Context()))
	testkit.NoError(t, reports.Send(&loadstatsv3.LoadStatsRequest{Node: &corev3.Node{Id: "invented"}}))
	if _, err := reports.Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("load reports of an invented proxy: %v", err)
	}
	f.setReports(skewReport)
	f.startReports(t, c)
	p.waitFor(t, "a plan with stages", func(s *routing.Snapshot) bool { got, ok := plan(s); return ok && len(got.Stages) > 1 })
	if s := waitFor(t, c, "the roll-out's end", func(s Status) bool { return s.PublishedEpoch >= 2 }); len(s.Refused) > 0 || s.Error != "" {
		t.Errorf("refused: %v, error %q", s.Refused, s.Error)
	}
	c.stop()
	<-done
}
