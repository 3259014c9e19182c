package client

import (
	"math/rand/v2"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestStages reads stages back from random views: ranges, addresses, health and weights of the
// replicas of each stage, and all other replicas behind them.
func TestStages(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 5))
	for range testkit.Size(30, 300) {
		v := randomView(r)
		s := feed(t, newMachine(&corev3.Node{Id: "n"}), testkit.Must(resources.Build(v)))
		all := testkit.Must(ReadStages(s))
		if len(all) != len(v.Models) {
			t.Fatalf("%d models, want %d", len(all), len(v.Models))
		}
		byID := make(map[policies.ReplicaID]resources.Endpoint)
		of := make(map[string]int)
		for _, e := range v.Endpoints {
			byID[e.ID] = e
			of[e.Model]++
		}
		for _, p := range v.Plans {
			for k, want := range p.Stages {
				got := all[p.Model][k]
				if got.Low != want.Low || got.High != want.High {
					t.Fatalf("stage %d of %s is [%d, %d), want [%d, %d)", k, p.Model, got.Low, got.High, want.Low, want.High)
				}
				first := make(map[string]Endpoint)
				for _, e := range got.Endpoints.Priorities[0] {
					first[e.Address] = e
				}
				if len(first) != len(want.Replicas) {
					t.Fatalf("stage %d of %s has %d replicas, want %d", k, p.Model, len(first), len(want.Replicas))
				}
				for _, id := range want.Replicas {
					if e, w := first[byID[id].Address], byID[id]; e.Weight != w.Weight || e.Healthy != (w.Health == resources.Healthy) {
						t.Fatalf("replica %s is %+v, want %+v", id, e, w)
					}
				}
				n := 0
				for _, tier := range got.Endpoints.Priorities {
					n += len(tier)
				}
				if n != of[p.Model] {
					t.Fatalf("stage %d of %s has %d endpoints in all, want %d", k, p.Model, n, of[p.Model])
				}
			}
		}
	}
}

// TestStagesUnreadable checks that stages with gaps or without endpoints are errors.
func TestStagesUnreadable(t *testing.T) {
	v := randomView(rand.New(rand.NewPCG(1, 6)))
	good := feed(t, newMachine(&corev3.Node{Id: "n"}), testkit.Must(resources.Build(v)))
	without := func(edit func(*Snapshot)) error {
		s := *good
		edit(&s)
		_, err := ReadStages(&s)
		return err
	}
	testkit.WantError(t, without(func(s *Snapshot) { s.Clusters = nil }), "no endpoints yet")
	testkit.WantError(t, without(func(s *Snapshot) { s.Assignments = nil }), "no endpoints yet")
	edited := func(field string, value *structpb.Value) error {
		return without(func(s *Snapshot) {
			s.Routes = make(map[string]*RouteTable)
			for name, table := range good.Routes {
				t := *table
				t.Hosts = nil
				for _, host := range table.Hosts {
					h := *host
					h.Routes = nil
					for _, route := range host.Routes {
						r := *route
						if m := r.Metadata.GetFilterMetadata()[resources.MetadataKey]; m != nil {
							fields := map[string]*structpb.Value{}
							for k, f := range m.Fields {
								fields[k] = f
							}
							fields[field] = value
							r.Metadata = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{resources.MetadataKey: {Fields: fields}}}
						}
						h.Routes = append(h.Routes, &r)
					}
					t.Hosts = append(t.Hosts, &h)
				}
				s.Routes[name] = &t
			}
		})
	}
	testkit.WantError(t, edited("stage", structpb.NewNumberValue(1)), "no stage 0")
	testkit.WantError(t, edited("low", structpb.NewStringValue("7")), "no stage 0")
	testkit.WantError(t, edited("high", structpb.NewStringValue("0")), "no stage 0")
	testkit.WantError(t, edited("epoch", structpb.NewStringValue("x")), "epoch")
}
