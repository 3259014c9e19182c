package inprocess

import (
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/clienttest"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/xds/control"
)

// halves is a planner that always chooses two stages of equal size.
type halves struct{ cut policies.Tokens }

func (h halves) Partition(w policies.Workload) (policies.Partition, error) {
	return h.Price(w, []policies.Tokens{h.cut}, []int{w.Replicas / 2, w.Replicas - w.Replicas/2})
}

// Price prefers two stages to one, and predicts slow iterations for all stages.
func (halves) Price(_ policies.Workload, cuts []policies.Tokens, counts []int) (policies.Partition, error) {
	p := policies.Partition{Cuts: cuts, Counts: counts, Cost: 2 / float64(len(counts)), OneStage: 2}
	for range counts {
		p.Iterations = append(p.Iterations, 1e6)
	}
	return p, nil
}

// runLinkedFleet runs eight replicas on two hosts, whose GPUs 0 and 1, 2 and 3 are joined by NVLink, until the planner
// has divided them and each stream has migrated once. It returns the second stage and how many streams left their host.
func runLinkedFleet(t *testing.T, streams int, topology ...string) (second []policies.ReplicaID, crossed int) {
	r := newCheckedFleet(t, harnessConfig{replicas: 8, edit: func(f *config.Fleet) {
		f.Speed = 2 // faster, and on a busy machine the bids of near replicas come too late
		f.Models[0].Profile = "testdata/linked.json"
		f.Planner = config.Planner{MinRequests: 1, Period: time.Second}
		f.Migration, f.Topology = config.Migration{Mode: config.MigrationLive}, topology
		for i := range f.Replicas {
			gpu := i % 4
			f.Replicas[i].Host, f.Replicas[i].GPU = string("ab"[i/4]), &gpu
		}
	}, control: func(c *control.Config) {
		c.Rules.Wrap = func(string, adoption.Planner) adoption.Planner { return halves{384} }
	}})
	r.Stream(prompt(100, 4)).Wait() // so that there is load to plan for
	s := r.waitForStatus("two stages in use", func(s control.Status) bool { return len(s.Models[0].Stages) == 2 && inUse(s, s.Epoch) })
	for _, n := range s.Models[0].Stages[1].Replicas {
		second = append(second, n.ID)
	}
	host := map[policies.ReplicaID]string{}
	for _, n := range r.cfg.Fleet.Fleet.Replicas {
		host[policies.ReplicaID(n.ID)] = n.Host
	}
	for n := 0; n < streams; {
		var few []*clienttest.Stream
		for range min(4, streams-n) {
			few = append(few, r.Stream(prompt(400, forever)))
			n++
		}
		r.WaitFor("all have migrated", func() bool {
			crossed = 0
			over := map[string]bool{}
			done, _ := r.migrations()
			for _, m := range done {
				if m.Cause != policies.Growth || over[m.Request] {
					continue
				}
				over[m.Request] = true
				if host[m.From] != host[m.To] {
					crossed++
				} else if m.Transport != "shm" {
					// The file has GPUs, but the pools are in host memory.
					t.Errorf("%s went from %s to %s by %q", m.Request, m.From, m.To, m.Transport)
				}
			}
			return len(over) == n
		})
		for _, s := range few {
			s.Leave()
		}
	}
	return second, crossed
}

// TestMigrationsStayOnHost checks the effect of the hosts' topology: migrators report links,
// adjacent stages get one GPU of each joined pair, and most migrations stay on a host. Without the
// topology, stages still spread over the hosts, and about half of the migrations leave their host.
func TestMigrationsStayOnHost(t *testing.T) {
	t.Parallel()
	const streams = 32
	var second, blind []policies.ReplicaID
	var crossed, blindCrossed int
	t.Run("fleets", func(t *testing.T) {
		t.Run("linked", func(t *testing.T) {
			t.Parallel()
			second, crossed = runLinkedFleet(t, streams, "testdata/bridged.json")
		})
		t.Run("blind", func(t *testing.T) {
			t.Parallel()
			blind, blindCrossed = runLinkedFleet(t, streams)
		})
	})
	t.Logf("of %d migrations: with the topology %d left their host, %v being the second stage; without %d and %v", streams, crossed, second, blindCrossed, blind)
	for i := 0; i < 8; i += 2 {
		if slices.Contains(second, ids(i)[0]) == slices.Contains(second, ids(i + 1)[0]) {
			t.Errorf("%v are joined, and in one stage: %v is the second", ids(i, i+1), second)
		}
	}
	for _, stage := range [][]policies.ReplicaID{second, blind} {
		if on := slices.DeleteFunc(slices.Clone(stage), func(id policies.ReplicaID) bool { return id >= "r4" }); len(stage) != 4 || len(on) != 2 {
			t.Errorf("of %v %d are on the first host", stage, len(on))
		}
	}
	// A target on another host wins if its load is lower by more than the request.
	if 2*crossed >= blindCrossed {
		t.Error("the topology does not keep migrations on their hosts")
	}
}
