package inprocess

import (
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/market"
	"github.com/cascadeinfer/cascade/migrator/move"
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
// has divided them and each of some streams, one after the other, has left its stage. It returns the second stage and
// these migrations.
func runLinkedFleet(t *testing.T, streams int, topology ...string) (second []policies.ReplicaID, moves []move.Migration) {
	r := newCheckedFleet(t, harnessConfig{replicas: 8, edit: func(f *config.Fleet) {
		f.Speed = 2
		f.Models[0].Profile = "testdata/linked.json"
		f.Planner = config.Planner{Adopt: config.AdoptGain, MinRequests: 1, Period: time.Second}
		f.Migration, f.Topology = config.Migration{Mode: config.MigrationLive}, topology
		for i := range f.Replicas {
			gpu := i % 4
			f.Replicas[i].Host, f.Replicas[i].GPU = string("ab"[i/4]), &gpu
		}
	}, control: func(c *control.Config) {
		c.Rules.Wrap = func(string, adoption.Planner) adoption.Planner { return halves{384} }
	}, migrator: func(c *migratord.Config) {
		c.EditMarket = func(m *market.Config) {
			// On a busy machine the bid of a near replica may be late: every sale waits for all bids.
			m.Machine.BidTimeout, m.Machine.AnswerTimeout = 60*policies.Second, 60*policies.Second
		}
	}})
	r.Stream(prompt(100, 4)).Wait() // so that there is load to plan for
	s := r.waitForStatus("two stages in use", func(s control.Status) bool { return len(s.Models[0].Stages) == 2 && inUse(s, s.Epoch) })
	for _, n := range s.Models[0].Stages[1].Replicas {
		second = append(second, n.ID)
	}
	for n := range streams {
		stream := r.Stream(prompt(1300+n, forever)) // of 300 tokens
		r.WaitFor("the stream has migrated", func() bool {
			done, _ := r.migrations()
			moves = slices.DeleteFunc(done, func(m move.Migration) bool { return m.Cause != policies.Growth })
			return len(moves) > n
		})
		stream.Leave()
		r.waitForIdle()
		// Engines report their KV once a second. A report from before the stream left its engine makes loads unequal.
		r.WaitFor("no engine reports KV in use", func() bool {
			for _, d := range r.daemons {
				if d.Frontend().Status().Load.Engine.KVUsed > 0 {
					return false
				}
			}
			return true
		})
	}
	return second, moves
}

// TestMigrationsStayOnHost checks the effect of the hosts' topology: migrators report links, adjacent stages get one
// GPU of each joined pair, and where loads are equal, a request that leaves its stage goes to the GPU that is joined to
// its own. Package bidask's TestNearAndBalanced has the share of near migrations under load. The slow test shows that
// without the topology stages still spread over the hosts, and migrations do not stay on theirs.
func TestMigrationsStayOnHost(t *testing.T) {
	t.Parallel()
	t.Run("linked", func(t *testing.T) {
		t.Parallel()
		second, moves := runLinkedFleet(t, 4, "testdata/bridged.json")
		requireSpread(t, second)
		for i := 0; i < 8; i += 2 {
			if slices.Contains(second, ids(i)[0]) == slices.Contains(second, ids(i + 1)[0]) {
				t.Errorf("%v are joined, and in one stage: %v is the second", ids(i, i+1), second)
			}
		}
		for _, m := range moves {
			// The file has GPUs, but the pools are in host memory.
			if joinedPair(m.From) != joinedPair(m.To) || m.Transport != "shm" {
				t.Errorf("a request went from %s to %s by %q", m.From, m.To, m.Transport)
			}
		}
	})
	t.Run("blind", func(t *testing.T) {
		testkit.SkipSlow(t)
		t.Parallel()
		second, moves := runLinkedFleet(t, 16)
		requireSpread(t, second)
		if !slices.ContainsFunc(moves, func(m move.Migration) bool { return joinedPair(m.From)/2 != joinedPair(m.To)/2 }) {
			t.Errorf("without the topology, all of %d migrations stay on their hosts", len(moves))
		}
	})
}

// requireSpread checks that a stage has four replicas, two of them on the first host.
func requireSpread(t *testing.T, stage []policies.ReplicaID) {
	t.Helper()
	if on := slices.DeleteFunc(slices.Clone(stage), func(id policies.ReplicaID) bool { return id >= "r4" }); len(stage) != 4 || len(on) != 2 {
		t.Errorf("of %v %d are on the first host", stage, len(on))
	}
}

// joinedPair returns which pair of joined GPUs a replica belongs to: 0 and 1 are on the first host, 2 and 3 on the second.
func joinedPair(id policies.ReplicaID) int { return int(id[1]-'0') / 2 }
