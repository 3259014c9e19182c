package endpointpicker

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/memgrpc"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/cache"
	"github.com/cascadeinfer/cascade/xds/internal/processing/processingtest"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
	"github.com/cascadeinfer/cascade/xds/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plane is a control plane that serves views, and a picker that follows it over real xDS.
type plane struct {
	t      *testing.T
	cache  *cache.Cache
	picker *Server
	client extproc.ExternalProcessorClient
	conn   *grpc.ClientConn

	mu      sync.Mutex
	pooled  bool   // the picker has a pool instead of a control plane
	version string // of the plan that it uses
}

// Update passes a snapshot to the picker.
func (p *plane) Update(s *routing.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pooled {
		return
	}
	p.picker.Update(s)
	p.version = s.Version
}

// updatePool gives the picker a pool instead of the control plane.
func (p *plane) updatePool(endpoints []netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pooled = true
	p.picker.UpdatePool(endpoints)
}

// startPlane runs both until the end of the test.
func startPlane(t *testing.T, c Config) *plane {
	t.Helper()
	p := &plane{t: t, cache: cache.New(cache.Config{}), picker: testkit.Must(New(c))}
	s := testkit.Must(server.New(server.Config{Cache: p.cache}))
	ads := grpc.NewServer()
	s.Register(t.Context(), ads)
	conn, _ := memgrpc.Serve(t, ads)
	xds := testkit.Must(routing.New(routing.Config{Conn: conn, NodeID: "picker", Watcher: p}))
	testkit.Run(t, xds.Run)
	own := grpc.NewServer(p.picker.Options()...)
	p.picker.Register(own)
	if c.Health != nil {
		healthpb.RegisterHealthServer(own, c.Health)
	}
	p.conn, _ = memgrpc.Serve(t, own)
	p.client = extproc.NewExternalProcessorClient(p.conn)
	return p
}

// publish serves a view and waits until the picker uses it.
func (p *plane) publish(v resources.View) {
	p.t.Helper()
	set, err := resources.Build(v)
	if err == nil {
		err = resources.Prove(set)
	}
	testkit.NoError(p.t, err)
	p.cache.Set("", set)
	want := set.Get(resources.RoutingType, resources.RoutingName("")).Version
	testkit.WaitForValue(p.t, "the picker's view", func() string { p.mu.Lock(); defer p.mu.Unlock(); return p.version }, func(got string) bool { return got == want })
}

// twoStages returns a view of model m with replicas 10.0.0.1 and .2 for short requests and .3
// and .4 for long ones, the model alone on every host.
func twoStages() resources.View {
	v := resources.View{
		Models: []resources.Model{{Name: "m", Context: 1 << 20, BytesPerToken: 1000}},
		Plans: []policies.Plan{{Model: "m", Epoch: 1, Stages: []policies.Stage{
			{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"r1", "r2"}},
			{Low: 1000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r3", "r4"}},
		}}},
	}
	for i := 1; i <= 4; i++ {
		v.Endpoints = append(v.Endpoints, resources.Endpoint{
			Replica: policies.Replica{ID: policies.ReplicaID(fmt.Sprint("r", i)), Model: "m", Address: fmt.Sprintf("10.0.0.%d:8000", i)},
			Weight:  100,
		})
	}
	return v
}

// withSecondModel adds model n/2 with one replica, 10.0.0.9, and a host of its own for m.
func withSecondModel(v resources.View) resources.View {
	v.Models[0].Hosts = []string{"m.test"}
	v.Models = append(v.Models, resources.Model{Name: "n/2", Context: 1 << 20, BytesPerToken: 2000})
	v.Plans = append(v.Plans, policies.OneStagePlan("n/2", []policies.ReplicaID{"r9"}))
	v.Endpoints = append(v.Endpoints, resources.Endpoint{
		Replica: policies.Replica{ID: "r9", Model: "n/2", Address: "10.0.0.9:8000", Adapters: []string{"n-lora"}},
		Weight:  100,
	})
	return v
}

// headers returns a gateway's first message, with pairs of name and value.
func headers(end bool, pairs ...string) *extproc.ProcessingRequest {
	r := processingtest.Headers(end, pairs...)
	r.ProtocolConfig = &extproc.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED}
	return r
}

// talk sends messages on one stream and describes the answers, a line for each.
func talk(t *testing.T, c extproc.ExternalProcessorClient, messages ...*extproc.ProcessingRequest) []string {
	t.Helper()
	out := processingtest.Talk(t, c, true, func(r *extproc.ProcessingResponse) string { return describe(t, r) }, messages...)
	return slices.DeleteFunc(out, func(line string) bool { return line == "closed" })
}

// describe describes an answer in one line, and checks that header and metadata agree.
func describe(t *testing.T, r *extproc.ProcessingResponse) string {
	t.Helper()
	destination := ""
	_, c := processingtest.Changes(r)
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		if h.Header.Key == DestinationHeader {
			destination = string(h.Header.RawValue)
		}
	}
	if md := r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue(); md != destination {
		t.Errorf("the header says %q, the metadata %q", destination, md)
	}
	short := strings.ReplaceAll(strings.ReplaceAll(destination, "10.0.0.", "."), ":8000", "")
	return strings.Replace(processingtest.Describe(r), DestinationHeader+"="+destination, "to="+short, 1)
}
