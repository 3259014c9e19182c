package move_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// points are the steps of a migration at which a fault can be injected: messages in transit, calls
// to engines, pulls, and actions of the front end.
var points = []string{
	"open", "accept", "round", "manifest", "pulled", "pulling", "ready", "commit", "query", "pending", "committed", "reverted", "ended", "rejected", "abort",
	"reserve", "table", "freeze", "thaw", "drop call", "mark filled", "release", "ticket", "pull", "move", "adopt", "start", "first",
}

// primers are the faults that a migration needs to reach a step.
var primers = map[string]string{
	"query": "part at commit", "pending": "reorder at commit", "reverted": "refuse at start", "ended": "client leaves at ready", "abort": "refuse at mark filled",
	"thaw": "refuse at start", "rejected": "moved away at freeze",
}

// remoteFrontEndPoints are the steps that no migration reaches if its source is the front end.
var remoteFrontEndPoints = map[string]bool{"commit": true, "query": true, "pending": true, "committed": true, "reverted": true, "ended": true, "rejected": true}

// scene is one run: replicas, streams, their migrations, and the faults.
type scene struct {
	*fleet
	source, target, frontEnd *replica // of the first migration
	request                  string
}

type faultKind struct {
	name string
	act  func(s *scene, rng *rand.Rand) verdict
}

// kinds are the kinds of faults. Each returns the verdict for the message or call at its point.
var kinds = []faultKind{
	{"drop", func(*scene, *rand.Rand) verdict { return drop }},
	{"double", func(*scene, *rand.Rand) verdict { return double }},
	{"reorder", func(*scene, *rand.Rand) verdict { return hold }},
	{"refuse", func(*scene, *rand.Rand) verdict { return refuse }},
	{"corrupt", func(*scene, *rand.Rand) verdict { return rot }},
	{"kill source", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.source.kill); return goOn }},
	{"kill target", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.target.kill); return goOn }},
	{"kill front", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.frontEnd.kill); return goOn }},
	{"pause source", func(s *scene, r *rand.Rand) verdict { s.source.pause(randomOutage(r)); return goOn }},
	{"pause target", func(s *scene, r *rand.Rand) verdict { s.target.pause(randomOutage(r)); return goOn }},
	{"pause front", func(s *scene, r *rand.Rand) verdict { s.frontEnd.pause(randomOutage(r)); return goOn }},
	{"cut source-target", func(s *scene, r *rand.Rand) verdict { s.cut(s.source, s.target, randomOutage(r)); return goOn }},
	{"cut source-front", func(s *scene, r *rand.Rand) verdict { s.cut(s.source, s.frontEnd, randomOutage(r)); return goOn }},
	{"cut target-front", func(s *scene, r *rand.Rand) verdict { s.cut(s.target, s.frontEnd, randomOutage(r)); return goOn }},
	{"slow links", func(s *scene, r *rand.Rand) verdict {
		by := time.Duration(20+r.IntN(200)) * time.Millisecond
		s.slow(s.source, s.target, by)
		s.slow(s.source, s.frontEnd, by)
		s.slow(s.target, s.frontEnd, by)
		return goOn
	}},
	{"preempt", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.source.engine.preempt); return goOn }},
	{"source's engine dies", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.source.crash); return goOn }},
	{"target's engine dies", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.target.crash); return goOn }},
	{"client leaves", func(s *scene, _ *rand.Rand) verdict {
		s.wg.Go(func() { s.frontEnd.frontEnd.disconnectClient(s.request) })
		return goOn
	}},
	{"market aborts", func(s *scene, _ *rand.Rand) verdict { s.wg.Go(s.abort); return goOn }},
	{"moved twice", func(s *scene, _ *rand.Rand) verdict {
		s.wg.Go(func() { s.move(s.request, s.source, s.frontEnd, policies.Drain) })
		return goOn
	}},
}

// primerKinds are the faults that only primers use: their effect does not vary.
var primerKinds = []faultKind{
	{"part", func(s *scene, _ *rand.Rand) verdict { s.cut(s.source, s.frontEnd, 1500*time.Millisecond); return goOn }},
	{"moved away", func(s *scene, _ *rand.Rand) verdict {
		// The front end considers the leg lost while its source still migrates it.
		f := s.frontEnd.frontEnd
		s.wg.Go(func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.rescueLocked(f.streams[s.request])
		})
		return goOn
	}},
}

// randomOutage returns a duration that may or may not be long enough to count as a crash.
func randomOutage(r *rand.Rand) time.Duration {
	return []time.Duration{50 * time.Millisecond, 300 * time.Millisecond, 1500 * time.Millisecond, 4 * time.Second}[r.IntN(4)]
}

// playScene runs a scene of replicas with the carriers that carry creates. In a grid the seed chooses which
// of them is the front end, and the faults come as early as possible. play returns the failures, or ""
// if there are none; reached reports whether all faults were injected.
func playScene(carry func(*replica) carrier, seed uint64, grid bool, faults ...string) (broken string, reached bool, moves int) {
	rng := rand.New(rand.NewPCG(seed, 9))
	link := int64(0)
	if rng.IntN(2) == 0 {
		link = int64(10_000 + rng.IntN(1_000_000)) // 10 ms to 1 s per request
	}
	if grid {
		link = 1_000_000 // so fast that migrations meet their deadline unless there is a fault
	}
	w := newFleet(3+rng.IntN(2), link, carry)
	order := shuffled(rng, w.replicas)
	s := &scene{fleet: w, source: order[0], target: order[1], frontEnd: order[rng.IntN(3)]}
	if grid {
		s.frontEnd = order[seed%3]
	}
	s.request = string(s.frontEnd.id) + "/1"
	s.frontEnd.frontEnd.startStream(s.request, prompt(int(seed), 3+rng.IntN(60)), 180, s.source)
	for i, n := range order { // and more streams
		if rng.IntN(2) == 0 {
			n.frontEnd.startStream(fmt.Sprintf("%s/%d", n.id, i+2), prompt(i, 10+rng.IntN(20)), 120, order[rng.IntN(len(order))])
		}
	}
	for _, f := range faults {
		kind, point, _ := strings.Cut(f, " at ")
		all := slices.Concat(kinds, primerKinds, onDevices, onGPUs)
		at := slices.IndexFunc(all, func(k faultKind) bool { return k.name == kind })
		nth := 0
		if !grid && rng.IntN(3) == 0 {
			nth = rng.IntN(4)
		}
		private := rand.New(rand.NewPCG(seed, uint64(at)))
		w.faults = append(w.faults, &fault{point: point, nth: nth, act: func() verdict { return all[at].act(s, private) }})
	}
	time.Sleep(time.Duration(50+rng.IntN(400)) * time.Millisecond)
	w.move(s.request, s.source, s.target, policies.Growth)
	// Later migrations move the request from wherever it is.
	for range rng.IntN(3) {
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		if h, ok := s.frontEnd.frontEnd.Holder(s.request); ok {
			w.move(s.request, w.replica(h.Replica), order[rng.IntN(len(order))], policies.Drain)
		}
	}
	settled := func() bool {
		if !w.isCalm() {
			return false
		}
		for _, n := range w.replicas {
			if !n.dead() && !n.frontEnd.settled() {
				return false
			}
		}
		return true
	}
	if !waitFor(time.Minute, settled) {
		w.fail("streams do not end: %s", w.unfinished())
	}
	time.Sleep(silence + 500*time.Millisecond)
	for _, l := range w.findLeftovers() {
		w.fail("%s", l)
	}
	reached = true
	for _, f := range w.faults {
		reached = reached && f.seen > f.nth
	}
	w.close()
	return w.failures(), reached, w.live + w.reprompted
}

// abort makes the market abort the migration at both sides.
func (s *scene) abort() {
	for _, n := range []*replica{s.source, s.target} {
		for _, m := range n.executor.Migrations() {
			if m.State != "moved" && m.State != "failed" {
				n.withdraw(m.ID)
			}
		}
	}
}

// TestFaultAtEveryStep injects each fault at each step.
func TestFaultAtEveryStep(t *testing.T) { faultAtEveryStep(t, kinds, 1, carryInside) }

// faultAtEveryStep injects each of the given faults at the steps of migrations over a carrier. With a stride of
// n it uses every nth step, different steps for each fault, and always the steps that pull blocks.
func faultAtEveryStep(t *testing.T, kinds []faultKind, stride int, carry func(*replica) carrier) {
	all := os.Getenv("CASCADE_TEST_ALL") != ""
	for kind, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			missed := slices.Clone(points)
			for i, p := range points {
				if (i+kind)%stride != 0 && p != "pull" {
					missed = slices.DeleteFunc(missed, func(m string) bool { return m == p })
					continue
				}
				// Run each step four times with the source, the target and a third replica as the
				// front end. Unless all runs are enabled, stop when one run has reached the step:
				// the scheduler determines which one does if a device copies.
				first := (i + kind) % 3
				if remoteFrontEndPoints[p] {
					first = 2
				}
				seeds := []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}
				if !all {
					seeds = slices.Concat(seeds[first:], seeds[:first])
				}
				for _, seed := range seeds {
					seed += uint64(i) * 3000
					synctest.Test(t, func(t *testing.T) {
						faults := []string{k.name + " at " + p}
						if primer, ok := primers[p]; ok {
							faults = append([]string{primer}, faults...)
						}
						broken, reached, _ := playScene(carry, seed, true, faults...)
						if broken != "" {
							t.Errorf("%s at %s, seed %d:\n%s", k.name, p, seed, broken)
						}
						if reached {
							missed = slices.DeleteFunc(missed, func(m string) bool { return m == p })
						}
					})
					if !all && !slices.Contains(missed, p) {
						break
					}
				}
			}
			if len(missed) > 0 {
				t.Errorf("no migration came to %v", missed)
			}
		})
	}
}

// TestRandomFaults injects up to three random faults at random steps. Every fifth run also damages a
// block on its way: there are so many kinds and steps that chance alone would rarely do so.
func TestRandomFaults(t *testing.T) {
	runs := uint64(500)
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		runs = 10_000
	}
	const lanes = 4
	for lane := range uint64(lanes) {
		t.Run(fmt.Sprint(lane), func(t *testing.T) {
			t.Parallel()
			moves := 0
			for seed := lane; seed < runs; seed += lanes {
				rng := rand.New(rand.NewPCG(seed, 10))
				var faults []string
				for range rng.IntN(4) {
					faults = append(faults, kinds[rng.IntN(len(kinds))].name+" at "+points[rng.IntN(len(points))])
				}
				if seed/lanes%5 == 0 {
					faults = append(faults, "corrupt at pull")
				}
				synctest.Test(t, func(t *testing.T) {
					broken, _, n := playScene(carryInside, 1_000_000+seed, false, faults...)
					moves += n
					if broken != "" {
						t.Errorf("seed %d, %v:\n%s", seed, faults, broken)
					}
				})
				if t.Failed() {
					return
				}
			}
			t.Logf("%d moves", moves)
			if moves < int(runs)/lanes/2 {
				t.Errorf("only %d moves", moves)
			}
		})
	}
}
