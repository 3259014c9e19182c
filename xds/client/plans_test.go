package client

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
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

// feed sends a set to a machine as a server would, and fails on any NACK.
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

// randomView returns a view of one to three models with random plans over random
// replicas.
func randomView(r *rand.Rand) resources.View {
	var v resources.View
	v.Settings.Estimator = []resources.Estimator{resources.ContentLength, resources.ExtProc}[r.IntN(2)]
	if v.Settings.Estimator == resources.ExtProc {
		v.Settings.LengthService = "127.0.0.1:9002"
	}
	if r.IntN(2) == 0 {
		v.Settings.PrefixSecret = length.PrefixSecret{1}
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
					Host: []string{"", "node-1", "node-2"}[r.IntN(3)], Weight: uint32(1 + r.IntN(100)), Health: resources.Health(r.IntN(3)),
					Capacity: policies.Capacity{KV: policies.Tokens(1 + r.Int64N(1<<60)), Batch: 1 + r.IntN(1000), TransferRate: float64(r.IntN(2)) * 0.1}})
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

// TestPlansInvertBuild checks the contract of Plans on random fleets. It also checks
// that every resource is accepted.
func TestPlansInvertBuild(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		v := randomView(r)
		set, err := resources.Build(v)
		if err != nil {
			t.Fatalf("seed %d: Build: %v", seed, err)
		}
		s := feed(t, newMachine(&corev3.Node{Id: "n"}), set)
		got, err := ReadPlans(s)
		if err != nil {
			t.Fatalf("seed %d: Plans: %v", seed, err)
		}
		// An observer reads the same without half of the endpoints.
		observer := newMachine(&corev3.Node{Id: "n", Cluster: resources.ObserverCluster})
		o := feed(t, observer, set)
		if observed, err := ReadPlans(o); err != nil || !cmp.Equal(observed, got) || !slices.EqualFunc(ReadReplicas(o), ReadReplicas(s), policies.Replica.Equal) || len(o.Clusters) != len(s.Clusters) {
			t.Fatalf("seed %d: an observer reads %v, %v", seed, observed, err)
		}
		if observer.subs[assignments].wanted[resources.PrefixClusterName(v.Models[0].Name, 0)] {
			t.Fatalf("seed %d: an observer subscribes to endpoints that it does not need", seed)
		}
		if d := cmp.Diff(v.Plans, got); d != "" {
			t.Fatalf("seed %d: (-built +read)\n%s", seed, d)
		}
		if want, got := replicasOf(v), ReadReplicas(s); !slices.EqualFunc(got, want, policies.Replica.Equal) {
			t.Fatalf("seed %d: (-built +read)\n%s", seed, cmp.Diff(want, got))
		}
	}
}

// replicasOf returns what Replicas should read from the resources of a view.
func replicasOf(v resources.View) []policies.Replica {
	var out []policies.Replica
	for _, e := range v.Endpoints {
		out = append(out, policies.Replica{
			ID: e.ID, Model: e.Model, Address: e.Address, Peer: e.Peer, Host: e.Host,
			Capacity: e.Capacity, Draining: e.Health != resources.Healthy,
		})
	}
	slices.SortFunc(out, func(a, b policies.Replica) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return out
}

// TestReplicasOfSome checks that the endpoints of another stage are used while those of
// one stage are missing, and that unreadable ones are left out.
func TestReplicasOfSome(t *testing.T) {
	v := randomView(rand.New(rand.NewPCG(8, 8)))
	for seed := uint64(9); len(v.Plans[0].Stages) < 2; seed++ {
		v = randomView(rand.New(rand.NewPCG(seed, 8)))
	}
	set, err := resources.Build(v)
	if err != nil {
		t.Fatal(err)
	}
	s := feed(t, newMachine(&corev3.Node{Id: "n"}), set)
	some := *s
	some.Assignments = maps.Clone(s.Assignments)
	delete(some.Assignments, resources.EndpointName(v.Plans[0].Model, 0))
	if d := cmp.Diff(replicasOf(v), ReadReplicas(&some)); d != "" {
		t.Errorf("without the first stage's: (-built +read)\n%s", d)
	}
	// One that cannot be read anywhere is left out; one that can be read somewhere is not.
	unreadable := s.Assignments[resources.EndpointName(v.Plans[0].Model, 0)].Priorities[0][0].Address
	stages := len(v.Plans[0].Stages)
	for k := range stages {
		mute := *s.Assignments[resources.EndpointName(v.Plans[0].Model, k)]
		mute.Priorities = slices.Clone(mute.Priorities)
		for i, tier := range mute.Priorities {
			mute.Priorities[i] = slices.Clone(tier)
			for j, e := range tier {
				if e.Address == unreadable {
					mute.Priorities[i][j].Metadata = nil
				}
			}
		}
		some.Assignments[mute.Name] = &mute
		want := len(v.Endpoints)
		if k == stages-1 {
			want--
		}
		if got := len(ReadReplicas(&some)); got != want {
			t.Errorf("unreadable in %d of %d stages: %d replicas, want %d", k+1, stages, got, want)
		}
	}
	if got := ReadReplicas(&Snapshot{}); len(got) != 0 {
		t.Errorf("replicas of nothing: %v", got)
	}
}

// BenchmarkPlansAndReplicas measures a migrator's work for one update.
func BenchmarkPlansAndReplicas(b *testing.B) {
	for _, n := range []int{16, 1000, 10000} {
		v := resources.View{Models: []resources.Model{{Name: "m", Context: 131072}}}
		p := policies.Plan{Model: "m", Epoch: 1, Stages: []policies.Stage{{Low: 0, High: 1000}, {Low: 1000, High: policies.Unbounded}}}
		for i := range n {
			id := policies.ReplicaID(fmt.Sprintf("replica-%d", i))
			p.Stages[i%2].Replicas = append(p.Stages[i%2].Replicas, id)
			v.Endpoints = append(v.Endpoints, resources.Endpoint{
				ID: id, Model: "m", Address: fmt.Sprintf("10.%d.%d.%d:80", i>>16, i>>8&255, i&255), Peer: "10.0.0.1:81",
				Host: fmt.Sprint("node-", i/8), Capacity: policies.Capacity{KV: 400_000, Batch: 256},
			})
		}
		v.Plans = []policies.Plan{p}
		set, err := resources.Build(v)
		if err != nil {
			b.Fatal(err)
		}
		s := feed(b, newMachine(&corev3.Node{Id: "n"}), set)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				if _, err := ReadPlans(s); err != nil {
					b.Fatal(err)
				}
				if len(ReadReplicas(s)) != n {
					b.Fatal("some are missing")
				}
			}
		})
	}
}

// TestPlansDuringRollout reads the routes of the old plan over the endpoints of both
// plans: a replica that changes its stage is counted once.
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
	plans, err := ReadPlans(feed(t, newMachine(&corev3.Node{Id: "n"}), set))
	if err != nil {
		t.Fatal(err)
	}
	if k := plans[0].StageOfReplica(mover); k != 0 {
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
	if _, err := ReadPlans(&without); err == nil {
		t.Error("a plan without clusters was read")
	}
	empty := *good
	empty.Assignments = nil
	if _, err := ReadPlans(&empty); err == nil {
		t.Error("a plan without endpoints was read")
	}
	if plans, err := ReadPlans(&Snapshot{}); err != nil || len(plans) != 0 {
		t.Error("an empty snapshot has no plans and no error, got", plans, err)
	}
}
