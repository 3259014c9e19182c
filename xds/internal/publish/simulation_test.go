package publish

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// The files simulation*_test.go run many short simulations of a small fleet
// against the real publisher, rollout and ledger. The seed decides every
// delivery.

// simulation is one run.
type simulation struct {
	t              *testing.T
	seed           uint64
	r              *rand.Rand
	pub            *Publisher
	nodes          []*simNode
	plans          map[string]policies.Plan // by the body of the route table
	shown          map[string]resources.Set
	bodies         map[string][]byte   // by version
	refusedPercent uint32              // share of new versions that every proxy refuses
	neverRefused   map[string]bool     // versions
	shownIn        map[string][]string // groups by route version, in the order of the rollout
	begun          map[string]int      // event count when the first of them was shown it
	signal         chan struct{}
	sent           int
	wanted         int // event count at the last submission; churn: at the last connect or disconnect
	churn          int

	verbose bool
	said    int
	log     []string
}

// newSimulation returns a simulation of random nodes, with resources of text.
func newSimulation(t *testing.T, seed uint64) *simulation {
	groups := testkit.Must(resources.NewGroups([]resources.GroupRule{{Name: "a", Nodes: []string{"a*"}}, {Name: "b", Nodes: []string{"b*"}}}))
	watch := time.Duration(rand.New(rand.NewPCG(seed, 2)).IntN(3)) * 500 * time.Millisecond
	sim := &simulation{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), plans: make(map[string]policies.Plan),
		shown: make(map[string]resources.Set), bodies: make(map[string][]byte), neverRefused: make(map[string]bool), shownIn: make(map[string][]string), begun: make(map[string]int),
		signal: make(chan struct{}, 1),
	}
	sim.pub = testkit.Must(New(Config{Cache: sim, Ledger: NewLedger(nil), Groups: groups, Watch: watch}))
	sim.pub.timer = time.NewTimer(time.Hour)
	sim.pub.rollout.build, sim.pub.rollout.prove = textSet, func(resources.Set) error { return nil }
	for i := range 3 + sim.r.IntN(3) {
		id := fmt.Sprint([]string{"an", "bn", "z"}[sim.r.IntN(3)], i)
		n := &simNode{sim: sim, id: id, group: groups.GroupOf(id, ""), perType: sim.r.IntN(2) == 0, has: make(map[string]map[string]*resources.Resource)}
		for _, typ := range simTypes {
			n.has[typ] = make(map[string]*resources.Resource)
		}
		sim.nodes = append(sim.nodes, n)
	}
	return sim
}

// logf records an event for the log of a failure.
func (sim *simulation) logf(format string, args ...any) {
	sim.said++
	if sim.verbose {
		sim.log = append(sim.log, fmt.Sprintf(format, args...))
	}
}

// failf fails the test. It runs the simulation again, with a log.
func (sim *simulation) failf(format string, args ...any) {
	sim.t.Helper()
	if !sim.verbose {
		for _, n := range sim.nodes {
			if n.up {
				n.disconnect()
			}
		}
		again := newSimulation(sim.t, sim.seed)
		again.verbose = true
		again.run()
	}
	sim.t.Fatalf("seed %d: %s\n%s", sim.seed, fmt.Sprintf(format, args...), strings.Join(sim.log[max(0, len(sim.log)-180):], "\n"))
}

func (sim *simulation) run() {
	v := sim.submitRandom(1, resources.View{})
	for _, n := range sim.nodes {
		if sim.r.IntN(4) > 0 {
			n.connect()
		}
	}
	for sim.deliverOne() {
		sim.observe()
	}
	sim.observe()
	if sim.r.IntN(3) > 0 {
		sim.refusedPercent = uint32(sim.r.IntN(30))
	}
	if sim.r.IntN(8) == 0 {
		sim.nodes[sim.r.IntN(len(sim.nodes))].picky = true
	}
	epoch := policies.Epoch(1)
	for range 60 {
		n := sim.nodes[sim.r.IntN(len(sim.nodes))]
		switch x := sim.r.IntN(100); {
		case x < 8:
			epoch++
			v = sim.submitRandom(epoch, v)
		case x < 11 && n.up:
			n.disconnect()
		case x < 16 && !n.up:
			n.connect()
		case x < 18 && n.up:
			if sub := n.subs[simTypes[sim.r.IntN(4)]]; sub != nil {
				sub.dropsAcks = true // until it reconnects
			}
		case x < 30:
			time.Sleep(time.Duration(sim.r.Int64N(int64(1200 * time.Millisecond))))
		default:
			for range 4 {
				sim.deliverOne()
				sim.observe()
			}
		}
		sim.observe()
	}
	// In the end every node answers.
	for _, n := range sim.nodes {
		if n.up {
			n.disconnect()
		}
	}
	sim.settle()
	rep := sim.pub.rollout.status()
	odd := slices.ContainsFunc(rep.Groups, func(g Group) bool { return len(g.refusing) > 0 })
	if rep.Stopped && rep.rolling != rep.target {
		sim.failf("plan %d is stopped in the end and holds plan %d back: %s", rep.rolling, rep.target, rep.blocked)
	}
	for _, g := range rep.Groups {
		if g.phase != idle && !rep.Stopped || !odd && len(g.fenced) > 0 {
			sim.failf("group %q: final phase %s, fenced %v; report %+v", g.Name, g.Phase, g.fenced, rep)
		}
		if rep.blocked == "" && g.Epoch != rep.target {
			sim.failf("group %q: final epoch %d, target %d, and nothing blocks it", g.Name, g.Epoch, rep.target)
		}
	}
	for _, n := range sim.nodes {
		if !odd && !n.isCurrent() {
			sim.failf("%s lacks resources of its set in the end", n.id)
		}
	}
}

var simulationsFlag = flag.Int("simulations", 0, "number of simulations of TestSimulations; 0 means 150, and 1,000 with CASCADE_TEST_ALL")

// TestSimulations checks over many seeds that no node ever has a route whose
// clusters or endpoints it lacks, that no refused plan is sent again, that
// plans go through the groups in order, and that every simulation ends settled.
func TestSimulations(t *testing.T) {
	lives, refused, sent := cmp.Or(*simulationsFlag, testkit.Size(150, 1000)), 0, 0
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(lives) {
			sim := newSimulation(t, seed)
			sim.run()
			refused += len(sim.pub.rollout.refused)
			sent += sim.sent
		}
	})
	t.Logf("%d simulations, %d messages, %d plans refused", lives, sent, refused)
	if refused == 0 {
		t.Error("no plan was refused")
	}
}
