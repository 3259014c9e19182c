package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// feed gives a set to a machine as a server would, and fails on any NACK.
func feed(t testing.TB, m *machine, set resources.Set) *Snapshot {
	t.Helper()
	now := time.Unix(1, 0)
	m.connect(now)
	for _, url := range []string{resources.ClusterType, resources.EndpointType, resources.ListenerType, resources.RouteType, resources.ExtensionType} {
		r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: url}
		for _, res := range set.All(url) {
			if !res.Unlisted {
				r.Resources = append(r.Resources, &discoveryv3.Resource{Name: res.Name, Version: res.Version, Resource: &anypb.Any{TypeUrl: res.Type, Value: res.Body}})
			}
		}
		if _, err := m.receive(now, r); err != nil {
			t.Fatalf("%s: %v", url, err)
		}
	}
	return m.snapshot()
}

// randomView has one to three models with random plans over random replicas.
func randomView(r *rand.Rand) resources.View {
	var v resources.View
	v.Settings.Estimator = []resources.Estimator{resources.ContentLength, resources.ExtProc}[r.IntN(2)]
	if v.Settings.Estimator == resources.ExtProc {
		v.Settings.Length = "127.0.0.1:9002"
	}
	port := 1
	for i := range 1 + r.IntN(3) {
		m := resources.Model{Name: fmt.Sprintf("org/modèle %d", i), Context: 131072, BytesPerToken: length.Ratio(500 + r.IntN(15000))}
		m.Hosts = []string{fmt.Sprintf("m%d.example", i), fmt.Sprintf("*.m%d.example", i)}[:r.IntN(3)]
		v.Models = append(v.Models, m)
		p := policies.Plan{Model: m.Name, Epoch: policies.Epoch(r.Uint64())}
		low := policies.Tokens(0)
		stages := 1 + r.IntN(policies.MaxStages)
		for k := range stages {
			s := policies.Stage{Low: low, High: low + 1 + policies.Tokens(r.IntN(40000))}
			if k == stages-1 {
				s.High = policies.Unbounded
			}
			low = s.High
			for range 1 + r.IntN(5) {
				id := policies.ReplicaID(fmt.Sprintf("replica-%d", port))
				s.Replicas = append(s.Replicas, id)
				v.Endpoints = append(v.Endpoints, resources.Endpoint{
					ID: id, Model: m.Name, Address: fmt.Sprintf("10.0.%d.%d:80", port/250, port%250+1), Peer: "p:1",
					Node: fmt.Sprintf("node-%d", r.IntN(3)), Weight: uint32(1 + r.IntN(100)), Health: resources.Health(r.IntN(3))})
				port++
			}
			slices.Sort(s.Replicas)
			p.Stages = append(p.Stages, s)
		}
		v.Plans = append(v.Plans, p)
	}
	r.Shuffle(len(v.Endpoints), func(i, j int) { v.Endpoints[i], v.Endpoints[j] = v.Endpoints[j], v.Endpoints[i] })
	return v
}

// TestPlansInvertBuild is the promise of Plans, on random fleets. That every
// resource is accepted is part of it.
func TestPlansInvertBuild(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := randomView(r)
		set, err := resources.Build(v)
		if err != nil {
			t.Fatalf("seed %d: Build: %v", seed, err)
		}
		s := feed(t, newMachine(&corev3.Node{Id: "n"}), set)
		got, err := Plans(s)
		if err != nil {
			t.Fatalf("seed %d: Plans: %v", seed, err)
		}
		if d := cmp.Diff(v.Plans, got); d != "" {
			t.Fatalf("seed %d: (-built +read)\n%s", seed, d)
		}
	}
}

// TestPlansDuringRollout reads the routes of the old plan over the endpoints
// of both: a mover is counted once.
func TestPlansDuringRollout(t *testing.T) {
	v := randomView(rand.New(rand.NewPCG(3, 3)))
	old := v.Plans[0]
	for seed := uint64(4); len(old.Stages) < 2 || len(old.Stages[1].Replicas) < 2; seed++ {
		v = randomView(rand.New(rand.NewPCG(seed, 3)))
		old = v.Plans[0]
	}
	next := policies.Plan{Model: old.Model, Epoch: old.Epoch + 1, Stages: slices.Clone(old.Stages)}
	mover := old.Stages[1].Replicas[0]
	next.Stages[0].Replicas = append(slices.Clone(next.Stages[0].Replicas), mover)
	next.Stages[1].Replicas = next.Stages[1].Replicas[1:]
	v.Plans[0], v.Previous = next, []policies.Plan{old}
	set, err := resources.Build(v)
	if err != nil {
		t.Fatal(err)
	}
	plans, err := Plans(feed(t, newMachine(&corev3.Node{Id: "n"}), set))
	if err != nil {
		t.Fatal(err)
	}
	if k := plans[0].Find(mover); k != 0 {
		t.Errorf("the mover is in stage %d, want 0", k)
	}
}

func TestPlansRefuse(t *testing.T) {
	v := randomView(rand.New(rand.NewPCG(8, 8)))
	set, err := resources.Build(v)
	if err != nil {
		t.Fatal(err)
	}
	good := feed(t, newMachine(&corev3.Node{Id: "n"}), set)
	without := *good
	without.Clusters = nil
	if _, err := Plans(&without); err == nil {
		t.Error("a plan without clusters was read")
	}
	empty := *good
	empty.Assignments = nil
	if _, err := Plans(&empty); err == nil {
		t.Error("a plan without endpoints was read")
	}
	if plans, err := Plans(&Snapshot{}); err != nil || len(plans) != 0 {
		t.Error("an empty snapshot has no plans and no error, got", plans, err)
	}
}
