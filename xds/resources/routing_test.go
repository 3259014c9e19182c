package resources_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// randomView returns a view of one to three models with random plans over random replicas.
func randomView(r *rand.Rand) resources.View {
	var v resources.View
	v.Settings = resources.Settings{AccessLog: []string{"", "/log"}[r.IntN(2)],
		Origins: []string{"https://a.example"}[:r.IntN(2)]}
	port := 1
	for i := range 1 + r.IntN(3) {
		m := resources.Model{
			Name: fmt.Sprintf("org/modèle %d/%%", i), Context: 131072,
			BytesPerToken: length.Ratio(500 + r.IntN(15500)),
		}
		m.Hosts = []string{fmt.Sprintf("*.m%d.example", i), fmt.Sprintf("m%d.example", i)}[:r.IntN(3)]
		v.Models = append(v.Models, m)
		p := policies.Plan{Model: m.Name, Epoch: policies.Epoch(r.Uint64())}
		low := policies.Tokens(0)
		stages := 1 + r.IntN(policies.MaxStages)
		for k := range stages {
			s := policies.Stage{Low: low, High: low + 1 + policies.Tokens(r.Int64N(1<<r.IntN(20)))}
			if k == stages-1 {
				s.High = policies.Unbounded
			}
			low = s.High
			for n := range 1 + r.IntN(5) {
				id := policies.ReplicaID(fmt.Sprintf("replica-%d", port))
				port++
				s.Replicas = append(s.Replicas, id)
				if k+n > 0 && r.IntN(10) == 0 {
					continue // a member whose address is not known
				}
				v.Endpoints = append(v.Endpoints, resources.Endpoint{
					Replica: policies.Replica{ID: id, Model: m.Name, Address: fmt.Sprintf("10.0.%d.%d:80", port/250, port%250+1), Peer: "p:1", Adapters: []string{"a", "b"}[:r.IntN(3)], Host: []string{"", "node-1", "node-2"}[r.IntN(3)], Prefill: r.IntN(9) == 0, Capacity: policies.Capacity{KV: policies.Tokens(1 + r.Int64N(1<<60)), Batch: 1 + r.IntN(1000),
						TransferRate: float64(r.IntN(2)) * 0.1}},
					Weight: uint32(1 + r.IntN(100)), Health: resources.Health(r.IntN(3)),
				})
			}
			slices.Sort(s.Replicas)
			p.Stages = append(p.Stages, s)
		}
		v.Plans = append(v.Plans, p)
	}
	r.Shuffle(len(v.Endpoints), func(i, j int) { v.Endpoints[i], v.Endpoints[j] = v.Endpoints[j], v.Endpoints[i] })
	return v
}

// follow returns what a follower reads of a set.
func follow(t testing.TB, s resources.Set, nodeCluster string) *resources.Routing {
	t.Helper()
	m, r := new(api.Routing), s.Get(resources.RoutingType, resources.RoutingName(nodeCluster))
	testkit.NoError(t, r.Decode(m))
	if got := resources.RoutingEpoch(r.Body); uint64(got) != m.Epoch {
		t.Errorf("epoch %d of %d", got, m.Epoch)
	}
	out, err := resources.ReadRouting(m)
	testkit.NoError(t, err)
	return out
}

// TestRoutingInvertsBuild checks on random fleets that a follower reads the plans, the
// replicas and the settings of the view, and an observer all but the weights.
func TestRoutingInvertsBuild(t *testing.T) {
	for seed := range uint64(100) {
		v := randomView(rand.New(rand.NewPCG(seed, 1)))
		set := build(t, v)
		got, observed := follow(t, set, ""), follow(t, set, resources.ObserverCluster)
		if d := cmp.Diff(v.Plans, got.Plans()); d != "" {
			t.Fatalf("seed %d: (-built +read)\n%s", seed, d)
		}
		var want, read []resources.Endpoint
		for i, m := range got.Models {
			if m.BytesPerToken != v.Models[i].BytesPerToken || !slices.Equal(m.Hosts, v.Models[i].Hosts) {
				t.Fatalf("seed %d: %+v", seed, m)
			}
			for j, r := range m.Replicas {
				if r.Draining != (r.Health != resources.Healthy) || r.Stage != m.Plan.StageOfReplica(r.ID) || r.At.String() != r.Address {
					t.Fatalf("seed %d: %+v", seed, r)
				}
				e := r.Endpoint
				e.Draining = false
				read = append(read, e)
				if r.Weight = 1; !cmp.Equal(r, observed.Models[i].Replicas[j], cmp.Comparer(func(a,
					b resources.RoutedReplica) bool {
					return a.At == b.At && a.Weight == b.Weight && a.Health == b.Health && a.Equal(b.Replica)
				})) {
					t.Fatalf("seed %d: an observer reads %+v", seed, observed.Models[i].Replicas[j])
				}
			}
		}
		want = append(want, v.Endpoints...)
		byID := func(a, b resources.Endpoint) int { return strings.Compare(string(a.ID), string(b.ID)) }
		slices.SortFunc(want, byID)
		slices.SortFunc(read, byID)
		for i := range want {
			if len(want[i].Adapters) == 0 {
				want[i].Adapters = nil
			}
		}
		if d := cmp.Diff(want, read); d != "" {
			t.Fatalf("seed %d: (-built +read)\n%s", seed, d)
		}
		if p := got.Proxy; p.AccessLog != v.Settings.AccessLog || !slices.Equal(p.Origins,
			v.Settings.Origins) || p.MaxRequests < 10_000 || p.IdleTimeout <= 0 {
			t.Fatalf("seed %d: %+v", seed, p)
		}
	}
}

// TestRoutingHasMembersOfPreviousPlans checks that a follower's plan is the new one during a
// rollout, with the replicas of both.
func TestRoutingHasMembersOfPreviousPlans(t *testing.T) {
	v := fleet()
	old := v.Plans[0]
	v.Plans = []policies.Plan{{Model: "org/m", Epoch: 8, Stages: []policies.Stage{{High: policies.Unbounded,
		Replicas: []policies.ReplicaID{"a"}}}}}
	v.Previous = []policies.Plan{old}
	m := follow(t, build(t, v), "").Models[0]
	if !cmp.Equal(m.Plan, v.Plans[0]) || len(m.Replicas) != len(v.Endpoints) {
		t.Errorf("%+v", m)
	}
}

// TestTiers checks the order of the replicas for a stage, and that every replica is in one
// tier of a small fleet, and the far ones in few of a large one.
func TestTiers(t *testing.T) {
	v := fleet()
	v.Endpoints[4].Prefill = true
	m := follow(t, build(t, v), "").Models[0]
	names := func(tiers [][]int) (out string) {
		for _, tier := range tiers {
			for _, i := range tier {
				out += string(m.Replicas[i].ID)
			}
			out += " "
		}
		return out
	}
	for k, want := range []string{"ab c d e ", "c d ab e ", "d abc e "} {
		if got := names(m.Tiers(k)); got != want {
			t.Errorf("stage %d: %q, want %q", k, got, want)
		}
	}
	for lost, wants := range map[int][]string{2: {"ab d e ", "d abe ", "d abe "}, 3: {"ab c e ", "c abe ", "c abe "}} { // c and d are stages
		v := fleet()
		v.Endpoints = slices.Delete(v.Endpoints, lost, lost+1)
		m = follow(t, build(t, v), "").Models[0]
		for k, want := range wants {
			if got := names(m.Tiers(k)); got != want {
				t.Errorf("without endpoint %d, stage %d: %q, want %q", lost, k, got, want)
			}
		}
	}
	large := follow(t, build(t, eightStages(4000, 0)), "").Models[0]
	first, second := large.Tiers(0), large.Tiers(1)
	if len(first[0]) != 500 || len(first[1]) != 500 || len(first[2]) > resources.MaxDistant || len(first[2]) < resources.MaxDistant/2 || slices.Equal(first[2], second[2]) {
		t.Errorf("%d, %d and %d replicas", len(first[0]), len(first[1]), len(first[2]))
	}
}

// TestByHost checks Envoy's order: exact names, then the longest suffix, then the longest
// prefix.
func TestByHost(t *testing.T) {
	r := &resources.Routing{}
	for name, hosts := range map[string][]string{"exact": {"a.example"}, "suffix": {"*.example"},
		"long suffix": {"*.b.example"}, "prefix": {"a.*"}} {
		r.Models = append(r.Models, resources.RoutedModel{LengthMeta: resources.LengthMeta{Model: name}, Hosts: hosts})
	}
	for host, want := range map[string]string{
		"a.example": "exact", "A.Example:80": "exact", "c.example": "suffix", "c.b.example": "long suffix",
		"a.test": "prefix", ".example": "", "a.": "", "b.test": "", "[::1]:80": "",
	} {
		got := ""
		if m := r.ByHost(host); m != nil {
			got = m.Model
		}
		if got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
}

// FuzzReadRouting reads arbitrary plans: it never panics, and what it accepts keeps the rules
// of plans.
func FuzzReadRouting(f *testing.F) {
	for _, v := range []resources.View{fleet(), twoModels()} {
		f.Add(build(f, v).Get(resources.RoutingType, resources.RoutingName("")).Body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		resources.RoutingEpoch(body)
		m := new(api.Routing)
		if proto.Unmarshal(body, m) != nil {
			return
		}
		r, err := resources.ReadRouting(m)
		if err != nil {
			return
		}
		for _, model := range r.Models {
			if err := model.Plan.Validate(); err != nil || model.BytesPerToken != model.BytesPerToken.Clamp() {
				t.Errorf("%v: %+v", err, model)
			}
			for _, x := range model.Replicas {
				if x.ID == "" || !x.At.IsValid() || x.Weight == 0 || x.Stage < -1 || x.Stage >= len(model.Plan.Stages) {
					t.Errorf("%+v", x)
				}
			}
			r.ByHost(model.Model)
			model.Tiers(0)
		}
	})
}

// BenchmarkRouting measures a follower's work for one update, and its size.
func BenchmarkRouting(b *testing.B) {
	for _, n := range []int{16, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := build(b, eightStages(n, 0)).Get(resources.RoutingType, resources.RoutingName(""))
			for b.Loop() {
				m := new(api.Routing)
				testkit.NoError(b, r.Decode(m))
				if _, err := resources.ReadRouting(m); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(r.Body)), "bytes")
		})
	}
}
