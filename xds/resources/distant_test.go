package resources_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// eightStages returns a view of a model with eight stages over n replicas, and as many more in no stage.
func eightStages(n, more int) resources.View {
	v := wide(policies.MaxStages, n, more)
	v.Settings.Estimator, v.Settings.LengthService = resources.ExtProc, "127.0.0.1:1"
	return v
}

// membersOf returns the ids of a stage's assignment, by priority.
func membersOf(t testing.TB, s resources.Set, name string) map[policies.ReplicaID]uint32 {
	t.Helper()
	out := make(map[policies.ReplicaID]uint32)
	cla := new(endpointv3.ClusterLoadAssignment)
	testkit.NoError(t, s.Get(resources.EndpointType, name).Decode(cla))
	for _, l := range cla.Endpoints {
		for _, e := range l.LbEndpoints {
			out[resources.ReplicaOf(e)] = l.Priority
		}
	}
	return out
}

// TestDistant checks what the assignments of a large fleet have: their own stage and the next one
// whole, replicas in no stage, and a bounded number of others. All of them together have the fleet.
// Which others does not change with health and weights, and hardly with another replica.
func TestDistant(t *testing.T) {
	const n, more = 2400, 3
	v := eightStages(n, more)
	s := build(t, v)
	testkit.NoError(t, resources.Prove(s))
	all := make(map[policies.ReplicaID]uint32)
	distant := make(map[policies.ReplicaID]int)
	for k, st := range v.Plans[0].Stages {
		got := membersOf(t, s, resources.EndpointName("m", k))
		want := len(st.Replicas) + more + resources.MaxDistant
		if k+1 < policies.MaxStages {
			want += len(v.Plans[0].Stages[k+1].Replicas)
		} else {
			want += len(v.Plans[0].Stages[k-1].Replicas) // all that a lost last stage has
		}
		if len(got) != want {
			t.Errorf("stage %d lists %d replicas, want %d", k, len(got), want)
		}
		for _, id := range st.Replicas {
			if p, ok := got[id]; !ok || p != 0 {
				t.Fatalf("stage %d lacks its own %s", k, id)
			}
		}
		for id, p := range got {
			if p == 2 {
				distant[id]++
			}
		}
		maps.Copy(all, got)
	}
	if len(all) != n+more {
		t.Errorf("the stages together list %d replicas of %d", len(all), n+more)
	}
	if len(distant) < n/2 {
		t.Errorf("only %d replicas of %d are distant ones of some stage: all stages fail over to the same", len(distant), n)
	}

	changed := eightStages(n, more)
	changed.Endpoints[17].Health, changed.Endpoints[18].Weight = resources.Unhealthy, 70
	after := build(t, changed)
	names := resources.ChangedNames(s, after, resources.EndpointType)
	if len(names) < 2 || len(names) > 2*(2+2) {
		t.Errorf("the health of one replica and the weight of another change %q", names)
	}
	for k := range policies.MaxStages {
		if name := resources.EndpointName("m", k); !maps.Equal(membersOf(t, s, name), membersOf(t, after, name)) {
			t.Errorf("stage %d lists others after a change of health", k)
		}
	}

	joined := build(t, eightStages(n+1, more-1)) // one that was in no stage
	for k := range policies.MaxStages {
		was, is := membersOf(t, s, resources.EndpointName("m", k)), membersOf(t, joined, resources.EndpointName("m", k))
		left := 0
		for id := range was {
			if _, ok := is[id]; !ok {
				left++
			}
		}
		if left > 1 {
			t.Errorf("stage %d: one replica joins a stage, and %d others leave the list", k, left)
		}
	}
}

// TestDistantDuringRollout checks that what only one of two plans has in a stage is in all assignments:
// migrators know only the stages that the routes name.
func TestDistantDuringRollout(t *testing.T) {
	v := eightStages(2400, 0)
	before := wide(4, 2400, 0).Plans[0] // four stages
	left := before.Stages[3].Replicas[7]
	before.Stages[3].Replicas = slices.DeleteFunc(slices.Clone(before.Stages[3].Replicas), func(id policies.ReplicaID) bool { return id == left })
	v.Previous = []policies.Plan{before}
	s := build(t, v)
	for k := range policies.MaxStages {
		if _, ok := membersOf(t, s, resources.EndpointName("m", k))[left]; !ok {
			t.Errorf("stage %d lacks a replica that only one of the plans has", k)
		}
	}
}

// TestDistantUnused checks the assignments of stages that no plan uses.
func TestDistantUnused(t *testing.T) {
	v := wide(4, 1000, 0)
	s := build(t, v)
	for k := 4; k < policies.MaxStages; k++ {
		if got := membersOf(t, s, resources.EndpointName("m", k)); len(got) != resources.MaxDistant || slices.Max(slices.Collect(maps.Values(got))) != 0 {
			t.Errorf("the unused stage %d lists %d replicas", k, len(got))
		}
	}
}

// BenchmarkHealthChange measures what one replica's health costs: what is rendered, and the bytes that
// each proxy is sent.
func BenchmarkHealthChange(b *testing.B) {
	for _, n := range []int{250, 1000, 10000} {
		b.Run(fmt.Sprintf("%d replicas", n), func(b *testing.B) {
			v := eightStages(n, 0)
			before := build(b, v)
			bytes, assignments, rounds := 0, 0, 0
			var after resources.Set
			for b.Loop() {
				at := (n/2 + 7*rounds) % n // in another stage each time
				v.Endpoints[at].Health = resources.Unhealthy
				after = build(b, v)
				v.Endpoints[at].Health = resources.Healthy
				for _, name := range resources.ChangedNames(before, after, resources.EndpointType) {
					if r := after.Get(resources.EndpointType, name); !r.Unlisted {
						bytes, assignments = bytes+len(r.Body), assignments+1
					}
				}
				rounds++
			}
			whole := 0
			for _, r := range after.All(resources.EndpointType) {
				if !r.Unlisted {
					whole += len(r.Body)
				}
			}
			b.ReportMetric(float64(bytes)/float64(rounds), "bytes/proxy")
			b.ReportMetric(float64(assignments)/float64(rounds), "assignments")
			b.ReportMetric(float64(whole), "bytes-of-all")
		})
	}
}
