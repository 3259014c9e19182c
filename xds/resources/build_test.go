package resources_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// fleet returns a view of one model with three stages of two, one and one replicas, and
// one replica that belongs to no stage.
func fleet() resources.View {
	return resources.View{
		Models: []resources.Model{{Name: "org/m", Context: 131072, Hosts: []string{"m.example"}}},
		Plans: []policies.Plan{{Model: "org/m", Epoch: 7, Stages: []policies.Stage{
			{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"a", "b"}},
			{Low: 1000, High: 9000, Replicas: []policies.ReplicaID{"c"}},
			{Low: 9000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"d"}},
		}}},
		Endpoints: []resources.Endpoint{
			{Replica: policies.Replica{ID: "a", Model: "org/m", Address: "127.0.0.1:8001", Peer: "127.0.0.1:9001", Host: "n1"}, Weight: 10},
			{Replica: policies.Replica{ID: "b", Model: "org/m", Address: "127.0.0.1:8002", Peer: "127.0.0.1:9002", Host: "n2"}},
			{Replica: policies.Replica{ID: "c", Model: "org/m", Address: "127.0.0.1:8003", Peer: "127.0.0.1:9003", Host: "n1"}, Health: resources.Draining},
			{Replica: policies.Replica{ID: "d", Model: "org/m", Address: "[::1]:8004", Peer: "[::1]:9004"}, Health: resources.Unhealthy},
			{Replica: policies.Replica{ID: "e", Model: "org/m", Address: "127.0.0.1:8005", Peer: "127.0.0.1:9005", Host: "n2"}},
		},
	}
}

// twoModels returns fleet and a second model of one stage, with the callout, the access
// log and tracing on.
func twoModels() resources.View {
	v := fleet()
	v.Models = append(v.Models, resources.Model{Name: "tiny", Context: 8192, BytesPerToken: 3500})
	v.Plans = append(v.Plans, policies.OneStagePlan("tiny", []policies.ReplicaID{"t"}))
	v.Endpoints = append(v.Endpoints, resources.Endpoint{Replica: policies.Replica{ID: "t", Model: "tiny", Address: "127.0.0.1:8101", Host: "n3"}})
	v.Settings = resources.Settings{
		Listen: "127.0.0.1:0", Estimator: resources.ExtProc, LengthService: "127.0.0.1:7000",
		AccessLog: "/dev/stdout", TraceCollector: "127.0.0.1:4317", TraceShare: 0.5,
	}
	return v
}

func build(t testing.TB, v resources.View) resources.Set {
	t.Helper()
	return testkit.Must(resources.Build(v))
}

func TestBuildDoesNotDependOnOrder(t *testing.T) {
	want := build(t, twoModels())
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		v := twoModels()
		r.Shuffle(len(v.Models), func(i, j int) { v.Models[i], v.Models[j] = v.Models[j], v.Models[i] })
		r.Shuffle(len(v.Plans), func(i, j int) { v.Plans[i], v.Plans[j] = v.Plans[j], v.Plans[i] })
		r.Shuffle(len(v.Endpoints), func(i, j int) { v.Endpoints[i], v.Endpoints[j] = v.Endpoints[j], v.Endpoints[i] })
		for _, p := range v.Plans {
			for _, s := range p.Stages {
				slices.Reverse(s.Replicas)
			}
		}
		if got := build(t, v); !got.Equal(want) {
			t.Fatal("the same view in another order gives other resources")
		}
	}
}

// TestBuildIsProvable proves what is built, also of plans with stages of which no replica is known: the next
// longer stage that has replicas serves instead, or the next shorter one.
func TestBuildIsProvable(t *testing.T) {
	views := map[string]resources.View{"one model": fleet(), "two models": twoModels()}
	without := func(lost ...int) resources.View {
		v := eightStages(2400, 0)
		v.Endpoints = slices.DeleteFunc(v.Endpoints, func(e resources.Endpoint) bool {
			return slices.Contains(lost, v.Plans[0].StageOfReplica(e.ID))
		})
		views[fmt.Sprintf("without stages %v", lost)] = v
		return v
	}
	middle, end := build(t, without(3, 4)), build(t, without(6, 7))
	without(0, 7)
	for name, v := range views {
		if err := prove(t, build(t, v)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct {
		set          resources.Set
		stage, other int
		priority     uint32
	}{{middle, 2, 5, 1}, {middle, 3, 5, 0}, {end, 5, 5, 0}, {end, 7, 5, 0}} {
		for id, priority := range membersOf(t, c.set, resources.EndpointName("m", c.stage)) {
			if at := eightStages(2400, 0).Plans[0].StageOfReplica(id); (at == c.other) != (priority == c.priority) {
				t.Fatalf("stage %d lists %s of stage %d with priority %d", c.stage, id, at, priority)
			}
		}
	}
}
