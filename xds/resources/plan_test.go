package resources_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// match is a simple router: it evaluates a virtual host as the xDS documents describe.
func match(vh *routev3.VirtualHost, headers map[string]int64, exact map[string]string) *routev3.Route {
	for _, r := range vh.Routes {
		if strings.HasPrefix(r.Name, "refused/") {
			continue // the request is in the public API
		}
		ok := true
		for _, h := range r.Match.Headers {
			if h.GetPresentMatch() {
				_, there := exact[h.Name]
				ok = ok && there
			} else if m := h.GetRangeMatch(); m != nil {
				n, there := headers[h.Name]
				ok = ok && there && m.Start <= n && n < m.End
			} else {
				ok = ok && exact[h.Name] == h.GetStringMatch().GetExact()
			}
		}
		if ok {
			return r
		}
	}
	return nil
}

// TestEveryRequestHasAStage routes by each of the headers and compares with the plan.
// (10 random fleets; 60 with CASCADE_TEST_ALL.)
func TestEveryRequestHasAStage(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	for range testkit.Size(10, 60) {
		v := randomView(r)
		s := build(t, v)
		if err := prove(t, s); err != nil {
			t.Fatalf("%v\n%+v", err, v)
		}
		rc := message(t, s.Get(resources.RouteType, resources.RouteName)).(*routev3.RouteConfiguration)
		for _, p := range v.Plans {
			i := slices.IndexFunc(v.Models, func(m resources.Model) bool { return m.Name == p.Model })
			ratio := length.Estimator{BytesPerToken: v.Models[i].BytesPerToken}
			lengths := []policies.Tokens{0, 1, math.MaxInt64 - 1, math.MaxInt64}
			for _, st := range p.Stages {
				for d := policies.Tokens(-1); d <= 1 && st.High != policies.Unbounded; d++ {
					lengths = append(lengths, st.High+d)
				}
			}
			for _, vh := range rc.VirtualHosts {
				own := vh.Name == p.Model
				if !own && vh.Name != "*" {
					continue
				}
				for _, n := range lengths {
					route := match(vh, map[string]int64{length.TokensHeader: int64(n)}, map[string]string{length.ModelHeader: p.Model})
					stage(t, route, p, p.StageOf(n), n)
				}
				route := match(vh, nil, map[string]string{length.ModelHeader: p.Model})
				stage(t, route, p, len(p.Stages)-1, -1)
				if !own {
					if route := match(vh, map[string]int64{"content-length": 5}, nil); route.GetDirectResponse().GetStatus() != 404 {
						t.Fatalf("a request without a model is routed to %q", route.Name)
					}
					continue
				}
				for _, n := range lengths {
					for _, b := range []int64{ratio.CutBytes(n), ratio.CutBytes(n) - 1} {
						if b < 0 {
							continue
						}
						route := match(vh, map[string]int64{"content-length": b}, nil)
						stage(t, route, p, p.StageOf(ratio.FromContentLength(b)), policies.Tokens(b))
					}
				}
				stage(t, match(vh, nil, nil), p, len(p.Stages)-1, -1)
			}
		}
	}
}

func stage(t *testing.T, r *routev3.Route, p policies.Plan, want int, n policies.Tokens) {
	t.Helper()
	if got := r.GetRoute().GetCluster(); got != resources.ClusterName(p.Model, want) {
		t.Fatalf("%d goes to %q by route %q, want stage %d of %+v", n, got, r.GetName(), want, p)
	}
}

func TestMetadataRoundTrip(t *testing.T) {
	s := build(t, twoModels())
	rc := message(t, s.Get(resources.RouteType, resources.RouteName)).(*routev3.RouteConfiguration)
	one, err := resources.ReadLengthMeta(rc.VirtualHosts[0].Metadata)
	if want := []resources.LengthMeta{{Model: "org/m", BytesPerToken: length.DefaultRatio}}; err != nil || !reflect.DeepEqual(one, want) {
		t.Errorf("host: %+v, %v; want %+v", one, err, want)
	}
	two, err := resources.ReadLengthMeta(rc.VirtualHosts[1].Metadata)
	if want := append(one, resources.LengthMeta{Model: "tiny", BytesPerToken: 3500}); err != nil || !reflect.DeepEqual(two, want) {
		t.Errorf("any host: %+v, %v; want %+v", two, err, want)
	}
	if none, err := resources.ReadLengthMeta(nil); none != nil || err != nil {
		t.Errorf("no metadata: %+v, %v", none, err)
	}
	cla := message(t, s.Get(resources.EndpointType, resources.EndpointName("org/m", 0))).(*endpointv3.ClusterLoadAssignment)
	if id := resources.ReplicaOf(cla.Endpoints[0].LbEndpoints[0]); id != "a" {
		t.Errorf("endpoint of %q", id)
	}
}

// TestAdapters checks that the adapters that replicas have loaded reach the estimators, model by model, and change no
// endpoints. If no replica has any, no byte of the resources changes.
func TestAdapters(t *testing.T) {
	v := twoModels()
	plain := build(t, v)
	v.Endpoints[0].Adapters = []string{"sql", "poet", "sql"}
	s := build(t, v)
	rc := message(t, s.Get(resources.RouteType, resources.RouteName)).(*routev3.RouteConfiguration)
	one, err := resources.ReadLengthMeta(rc.VirtualHosts[0].Metadata)
	if err != nil || !slices.Equal(one[0].Adapters, []string{"poet", "sql"}) || !one[0].Serves("sql") || !one[0].Serves("org/m") || one[0].Serves("tiny") {
		t.Errorf("host: %+v, %v", one, err)
	}
	all, err := resources.ReadLengthMeta(rc.VirtualHosts[1].Metadata)
	if err != nil || !all[0].Serves("poet") || all[1].Serves("poet") {
		t.Errorf("any host: %+v, %v", all, err)
	}
	if names := resources.ChangedNames(plain, s, resources.EndpointType); len(names) > 0 {
		t.Errorf("endpoints %q have changed", names)
	}
	v.Endpoints[0].Adapters = nil
	if !build(t, v).Equal(plain) {
		t.Error("without adapters the resources differ")
	}
}

func TestSet(t *testing.T) {
	s := build(t, fleet())
	if _, err := resources.NewSet(s.All(resources.ClusterType)[0], s.All(resources.ClusterType)[0]); err == nil {
		t.Error("a resource is in a set twice")
	}
	without := s.WithTypes(resources.Set{}, resources.RouteType)
	if without.Len(resources.RouteType) != 0 || s.Len(resources.RouteType) != 5 || without.Equal(s) || !without.Equal(s, resources.ClusterType) {
		t.Error("a derived set is wrong, or changed the one that it was made of")
	}
	if names := resources.ChangedNames(resources.Set{}, s, resources.ListenerType); !slices.Equal(names, []string{"cascade", "org/m.cascade", resources.FederatedListenerName("org/m")}) {
		t.Errorf("changed from nothing: %q", names)
	}
	if !s.Get(resources.ListenerType, resources.GRPCListenerName("org/m")).Unlisted {
		t.Error("the listener of gRPC clients is listed")
	}
}

// wide returns a view of one model with n replicas, dealt to so many stages of 1,000 tokens each, and as many
// more in no stage.
func wide(stages, n, more int) resources.View {
	v := resources.View{Models: []resources.Model{{Name: "m", Context: 1 << 17}}}
	p := policies.Plan{Model: "m", Epoch: 1, Stages: make([]policies.Stage, stages)}
	for k := range p.Stages {
		p.Stages[k] = policies.Stage{Low: policies.Tokens(1000 * k), High: policies.Tokens(1000 * (k + 1))}
	}
	p.Stages[stages-1].High = policies.Unbounded
	for i := range n + more {
		id := policies.ReplicaID(fmt.Sprint("replica-", i))
		if i < n {
			p.Stages[i%stages].Replicas = append(p.Stages[i%stages].Replicas, id)
		}
		v.Endpoints = append(v.Endpoints, resources.Endpoint{
			Replica: policies.Replica{ID: id, Model: "m", Address: fmt.Sprintf("10.%d.%d.%d:80", i>>16, i>>8&255, i&255), Host: fmt.Sprint("n", i/8)},
		})
	}
	v.Plans = []policies.Plan{p}
	return v
}

func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{8, 1000, 10000} {
		v := wide(4, n, 0)
		b.Run(fmt.Sprintf("build/%d replicas", n), func(b *testing.B) {
			for b.Loop() {
				build(b, v)
			}
		})
		s := build(b, v)
		size := 0
		for _, typ := range s.Types() {
			for _, r := range s.All(typ) {
				size += len(r.Body)
			}
		}
		b.Run(fmt.Sprintf("prove/%d replicas", n), func(b *testing.B) {
			for b.Loop() {
				testkit.NoError(b, resources.Prove(s))
			}
			b.ReportMetric(float64(size), "set-bytes")
		})
	}
}
