package publish

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/rollout"
	"github.com/cascadeinfer/cascade/xds/nodegroup"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// The files lives*_test.go play many short lives of a small fleet against the real
// publisher, rollout and ledger. Every delivery is a choice of the seed.

// life is one run.
type life struct {
	t      *testing.T
	seed   uint64
	r      *rand.Rand
	pub    *Publisher
	nodes  []*simNode
	plans  map[string]policies.Plan // by the body of the route table
	shown  map[string]resources.Set
	bodies map[string][]byte // by version
	wicked uint32            // share of new versions that every proxy refuses, in percent
	tame   map[string]bool   // versions that are never refused
	first  map[string]string // route version -> groups that were sent it, in order
	signal chan struct{}
	sent   int
	wanted int  // when the last table was, and when a node came or went last,
	churn  int  // by what happened
	kept   bool // a refused version was sent because nothing else was known

	verbose bool
	said    int
	log     []string
}

func newLife(t *testing.T, seed uint64) *life {
	l := &life{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), plans: make(map[string]policies.Plan),
		shown: make(map[string]resources.Set), bodies: make(map[string][]byte), tame: make(map[string]bool), first: make(map[string]string),
		signal: make(chan struct{}, 1),
	}
	groups, err := nodegroup.New([]nodegroup.Rule{{Name: "a", Nodes: []string{"a*"}}, {Name: "b", Nodes: []string{"b*"}}})
	if err != nil {
		t.Fatal(err)
	}
	watch := time.Duration(l.r.IntN(3)) * 500 * time.Millisecond
	if l.pub, err = New(Config{Cache: l, Ledger: NewLedger(nil), Groups: groups, Watch: watch}); err != nil {
		t.Fatal(err)
	}
	l.pub.rollout, err = rollout.New(rollout.Config{
		Groups: groups.Names(), Watch: watch, AckTimeout: l.pub.cfg.AckTimeout,
		Build: toySet, Prove: func(resources.Set) error { return nil }, CheckMembers: l.covers,
	})
	if err != nil {
		t.Fatal(err)
	}
	l.pub.timer = time.NewTimer(time.Hour)
	for i := range 3 + l.r.IntN(3) {
		g := []string{"a", "b", ""}[l.r.IntN(3)]
		n := &simNode{l: l, id: fmt.Sprint(g+"n", i), group: g, perType: l.r.IntN(2) == 0, has: make(map[string]map[string]*resources.Resource)}
		if g == "" {
			n.id = fmt.Sprint("z", i)
		}
		for _, typ := range simTypes {
			n.has[typ] = make(map[string]*resources.Resource)
		}
		l.nodes = append(l.nodes, n)
	}
	return l
}

// say keeps what happened, for a life that fails.
func (l *life) say(format string, args ...any) {
	l.said++
	if l.verbose {
		for i, arg := range args {
			if s, ok := arg.(resources.Set); ok {
				args[i] = words(s)
			}
		}
		l.log = append(l.log, fmt.Sprintf(format, args...))
	}
}

// A life that fails is lived again, to tell how it came to that.
func (l *life) fail(format string, args ...any) {
	l.t.Helper()
	if !l.verbose {
		for _, n := range l.nodes {
			if n.up {
				n.disconnect()
			}
		}
		again := newLife(l.t, l.seed)
		again.verbose = true
		again.live()
	}
	l.describe()
	l.t.Fatalf("seed %d: %s\n%s", l.seed, fmt.Sprintf(format, args...), strings.Join(l.log[max(0, len(l.log)-180):], "\n"))
}

// describe says what every node has, and what the ledger believes.
func (l *life) describe() {
	for _, n := range l.nodes {
		l.say("%s up %t, current %t, excused %t, withheld %t", n.id, n.up, n.current(), n.excused, n.withheld != nil)
		for _, typ := range simTypes {
			if sub := n.subs[typ]; sub != nil {
				l.say("  %s: has %v, believed %v, waiting %t, %d down, %d up", shortType(typ), sorted(n.has[typ]), sub.returned, sub.waiting, len(sub.down), len(sub.up))
			}
		}
		if l.pub.cfg.Ledger.nodes[n.id] == nil {
			continue
		}
		for _, s := range l.pub.cfg.Ledger.nodes[n.id].streams {
			for typ, sub := range s.types {
				l.say("  ledger: %s names %v, applied %v, %d sent", shortType(typ), sorted(sub.names), sub.applied, len(sub.sent))
			}
		}
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (l *life) live() {
	v := l.want(1, resources.View{})
	for _, n := range l.nodes {
		if l.r.IntN(4) > 0 {
			n.connect()
		}
	}
	for l.deliver() {
		l.look()
	}
	l.look()
	if l.r.IntN(3) > 0 {
		l.wicked = uint32(l.r.IntN(30))
	}
	if l.r.IntN(8) == 0 {
		l.nodes[l.r.IntN(len(l.nodes))].odd = true
	}
	epoch := policies.Epoch(1)
	for range 60 {
		n := l.nodes[l.r.IntN(len(l.nodes))]
		switch x := l.r.IntN(100); {
		case x < 8:
			epoch++
			v = l.want(epoch, v)
		case x < 11 && n.up:
			n.disconnect()
		case x < 16 && !n.up:
			n.connect()
		case x < 18 && n.up:
			if sub := n.subs[simTypes[l.r.IntN(4)]]; sub != nil {
				sub.lost = true // its acknowledgements, until it connects again
			}
		case x < 30:
			time.Sleep(time.Duration(l.r.Int64N(int64(1200 * time.Millisecond))))
		default:
			for range 4 {
				l.deliver()
				l.look()
			}
		}
		l.look()
	}
	// In the end everybody answers.
	for _, n := range l.nodes {
		if n.up {
			n.disconnect()
		}
	}
	l.calm()
	rep := l.pub.rollout.Report()
	odd := slices.ContainsFunc(l.nodes, func(n *simNode) bool { return n.odd }) ||
		slices.ContainsFunc(rep.Groups, func(g rollout.GroupReport) bool { return g.KeptRefused > 0 })
	for _, g := range rep.Groups {
		if g.Phase != rollout.Idle || !odd && len(g.Fenced) > 0 {
			l.fail("group %q ends in %s, fenced %v; report %+v", g.Name, g.Phase, g.Fenced, rep)
		}
		if rep.Blocked == "" && g.Epoch != rep.Target {
			l.fail("group %q ends at %d, wanted %d, and nothing holds it", g.Name, g.Epoch, rep.Target)
		}
	}
	for _, n := range l.nodes {
		if !odd && !n.current() {
			l.fail("%s ends without what it is shown", n.id)
		}
	}
}

var livesFlag = flag.Int("lives", 0, "how many lives TestLives lives; 0 means 150, and 1,000 with CASCADE_TEST_ALL")

// TestLives checks, over many seeds, that no node ever has a route whose
// clusters or endpoints it lacks, that nothing refused is sent again, that plans
// go through the groups in turn, and that every life ends settled.
func TestLives(t *testing.T) {
	lives, quarantined, sent, kept := *livesFlag, 0, 0, 0
	switch {
	case lives > 0:
	case os.Getenv("CASCADE_TEST_ALL") != "":
		lives = 1000
	default:
		lives = 150
	}
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(lives) {
			l := newLife(t, seed)
			l.live()
			quarantined += len(l.pub.rollout.Refusals())
			sent += l.sent
			if l.kept {
				kept++
			}
		}
	})
	t.Logf("%d lives, %d messages, %d versions quarantined; in %d lives one was sent for want of another", lives, sent, quarantined, kept)
	if kept > lives/50 {
		t.Error("that is more than in one life of 50")
	}
	if quarantined == 0 {
		t.Error("nothing was ever refused")
	}
}
