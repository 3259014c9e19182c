package publish_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// memoryStream is a delta stream in memory.
type memoryStream struct {
	grpc.ServerStream
	ctx       context.Context
	requests  chan *discoveryv3.DeltaDiscoveryRequest
	responses chan *discoveryv3.DeltaDiscoveryResponse
}

var _ stream.DeltaStream = (*memoryStream)(nil)

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

// history holds every submitted plan, by model and epoch.
type history struct {
	mu    sync.Mutex
	plans map[string]policies.Plan
	at    map[policies.ReplicaID]string // addresses, which never change in these tests
}

func (h *history) add(v resources.View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range v.Plans {
		h.plans[fmt.Sprint(p.Model, p.Epoch)] = p
	}
	for _, e := range v.Endpoints {
		h.at[e.ID] = e.Address
	}
}

// fakeProxy behaves like an Envoy with a delta ADS stream: it takes time to
// apply a response, withholds the ACK of clusters that still wait for their
// endpoints, and keeps what it has when the stream breaks. After every change
// it checks that its routes lead to the right replicas.
type fakeProxy struct {
	t           *testing.T
	id          string
	cluster     string
	history     *history
	rand        *rand.Rand
	maxDelay    time.Duration // longest time to apply a response
	breakChance float64       // chance that the stream breaks instead of a reply
	refuses     func(*discoveryv3.Resource) bool

	has     map[string]map[string]*discoveryv3.Resource // by type and name
	waiting []*discoveryv3.DeltaDiscoveryRequest        // ACKs of CDS, while clusters warm
	begin   func()                                      // subscribes to listeners and routes; nil afterwards
	checked int
	got     int // resources received
	mu      sync.Mutex
}

// run connects again and again until the context ends, with what it has from an
// earlier run.
func (p *fakeProxy) run(ctx context.Context, server serverv3.Server) {
	if p.has == nil {
		p.has = map[string]map[string]*discoveryv3.Resource{}
		for _, typ := range []string{resources.ClusterType, resources.EndpointType, resources.ListenerType, resources.RouteType} {
			p.has[typ] = map[string]*discoveryv3.Resource{}
		}
	}
	for ctx.Err() == nil {
		p.runStream(ctx, server)
		time.Sleep(time.Duration(1 + p.rand.IntN(int(50*time.Millisecond))))
	}
}

// runStream runs one stream.
func (p *fakeProxy) runStream(ctx context.Context, server serverv3.Server) {
	ctx, cancel := context.WithCancel(ctx)
	s := &memoryStream{ctx: ctx, requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 1000), responses: make(chan *discoveryv3.DeltaDiscoveryResponse, 1000)}
	done := make(chan error, 1)
	go func() { done <- server.DeltaStreamHandler(s, "") }()
	defer func() { cancel(); <-done }()
	p.waiting = nil
	node := &corev3.Node{Id: p.id, Cluster: p.cluster, Extensions: []*corev3.Extension{{Name: "long list"}}}
	send := func(r *discoveryv3.DeltaDiscoveryRequest) {
		r.Node, node = node, nil
		s.requests <- r
	}
	first := func(typ string, names ...string) {
		versions := make(map[string]string)
		for name, r := range p.has[typ] {
			versions[name] = r.Version
		}
		send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResourceNamesSubscribe: names, InitialResourceVersions: versions})
	}
	// A proxy that starts subscribes to one type after the other, and serves
	// when it has all of them.
	p.mu.Lock()
	p.begin = func() {
		p.begin = nil
		first(resources.ListenerType)
		first(resources.RouteType, resources.RouteName)
	}
	first(resources.ClusterType)
	asked := make(map[string]bool)
	for name := range p.has[resources.ClusterType] {
		asked[serviceOf(name)] = true
	}
	if len(asked) > 0 {
		first(resources.EndpointType, slices.Sorted(maps.Keys(asked))...)
	}
	if len(p.has[resources.RouteType]) > 0 {
		p.begin()
	}
	p.mu.Unlock()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-s.responses:
			time.Sleep(time.Duration(1 + p.rand.Int64N(int64(p.maxDelay))))
			if p.rand.Float64() < p.breakChance {
				return
			}
			p.applyResponse(r, asked, send)
		}
	}
}

func serviceOf(cluster string) string { return cluster[:len(cluster)-len("/rr")] }

// applyResponse applies a response and acknowledges it.
func (p *fakeProxy) applyResponse(r *discoveryv3.DeltaDiscoveryResponse, asked map[string]bool, send func(*discoveryv3.DeltaDiscoveryRequest)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got += len(r.Resources)
	ack := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.TypeUrl, ResponseNonce: r.Nonce}
	for _, res := range r.Resources {
		if p.refuses != nil && p.refuses(res) {
			ack.ErrorDetail = &rpcstatus.Status{Code: 13, Message: "no\n" + res.Name}
			continue
		}
		p.has[r.TypeUrl][res.Name] = res
	}
	for _, name := range r.RemovedResources {
		delete(p.has[r.TypeUrl], name)
	}
	if r.TypeUrl == resources.ClusterType {
		change := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: resources.EndpointType}
		now := make(map[string]bool)
		for name := range p.has[resources.ClusterType] {
			service := serviceOf(name)
			now[service] = true
			if !asked[service] {
				asked[service] = true
				change.ResourceNamesSubscribe = append(change.ResourceNamesSubscribe, service)
			}
		}
		for service := range asked {
			if !now[service] {
				delete(asked, service)
				delete(p.has[resources.EndpointType], service)
				change.ResourceNamesUnsubscribe = append(change.ResourceNamesUnsubscribe, service)
			}
		}
		if len(change.ResourceNamesSubscribe)+len(change.ResourceNamesUnsubscribe) > 0 {
			send(change)
		}
		p.waiting = append(p.waiting, ack)
	} else {
		send(ack)
	}
	if !p.warming() {
		if p.begin != nil {
			p.begin()
		}
		for _, ack := range p.waiting {
			send(ack)
		}
		p.waiting = nil
	}
	p.checkRoutes()
}

func (p *fakeProxy) warming() bool {
	for name := range p.has[resources.ClusterType] {
		if p.has[resources.EndpointType][serviceOf(name)] == nil {
			return true
		}
	}
	return false
}

// checkRoutes checks that every route leads to a cluster with endpoints, and
// every stage to all members of its plan.
func (p *fakeProxy) checkRoutes() {
	res := p.has[resources.RouteType][resources.RouteName]
	if res == nil {
		return
	}
	p.checked++
	rc := new(routev3.RouteConfiguration)
	decode(p.t, res, rc)
	p.history.mu.Lock()
	defer p.history.mu.Unlock()
	for _, vh := range rc.VirtualHosts {
		for _, route := range vh.Routes {
			if route.GetDirectResponse() != nil {
				continue
			}
			meta, err := resources.ReadRouteMeta(route.Metadata)
			if err != nil {
				p.t.Error(p.id, err)
				return
			}
			cluster := route.GetRoute().GetCluster()
			if p.has[resources.ClusterType][cluster] == nil {
				p.t.Errorf("%s: route to missing cluster %s", p.id, cluster)
				return
			}
			eds := p.has[resources.EndpointType][serviceOf(cluster)]
			if eds == nil {
				p.t.Errorf("%s: route to warming cluster %s", p.id, cluster)
				return
			}
			cla := new(endpointv3.ClusterLoadAssignment)
			decode(p.t, eds, cla)
			members := make(map[policies.ReplicaID]bool)
			for _, l := range cla.Endpoints {
				for _, e := range l.LbEndpoints {
					if m, err := resources.ReadEndpointMeta(e.Metadata); err == nil && l.Priority == 0 {
						members[m.ID] = true
					}
				}
			}
			plan := p.history.plans[fmt.Sprint(meta.Model, meta.Epoch)]
			for _, id := range plan.Stages[meta.Stage].Replicas {
				if !members[id] {
					p.t.Errorf("%s: routes of epoch %d, but stage %d of %s lacks member %s", p.id, meta.Epoch, meta.Stage, meta.Model, id)
					return
				}
			}
		}
	}
}

func decode(t *testing.T, res *discoveryv3.Resource, m proto.Message) {
	if err := proto.Unmarshal(res.Resource.Value, m); err != nil {
		t.Error(err)
	}
}

// refuse makes the proxy refuse some resources from now on.
func (p *fakeProxy) refuse(which func(*discoveryv3.Resource) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuses = which
}

// version returns the version that the proxy has of a resource.
func (p *fakeProxy) version(typ, name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.has[typ][name].GetVersion()
}

func (p *fakeProxy) received() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got
}
