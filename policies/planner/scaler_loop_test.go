package planner_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/planner"
	"github.com/cascadeinfer/cascade/policies/policytest"
)

// The loop of a Scaler with an autoscaler, in virtual time. Requests of three shapes arrive at random; a
// fleet serves what its replicas can, by the planner's own model, and keeps the others in a queue or refuses
// them; the flow is counted with forgetting; an autoscaler follows the number by HPA's rules; and a replica
// needs minutes to start, and minutes more until its prefix cache is warm.
const (
	second     = policies.Second
	minute     = 60 * second
	hour       = 60 * minute
	hpaSync    = 15 * second
	tolerance  = 0.1
	startDelay = 3 * minute
	warmUp     = 2 * minute
)

// shapes are the requests: input, output, and the share of all.
var shapes = []struct {
	input, output policies.Tokens
	share         float64
}{{400, 300, 0.7}, {3000, 400, 0.25}, {12000, 700, 0.05}}

// world is one run of the loop.
type world struct {
	rng      *rand.Rand
	scaler   *planner.Scaler
	load     func(policies.Micros) float64 // requests per second
	admit    bool                          // requests beyond maxWait are refused
	least    int                           // the autoscaler's minReplicas
	cold     float64                       // how much more prefill a cold replica computes
	unit     []policies.Flow               // of one request of each shape a second
	capacity float64                       // requests per second of one replica

	now      policies.Micros
	replicas []policies.Micros // when each was started
	target   int
	queue    float64   // requests that wait
	refused  float64   // so far
	rates    []float64 // served, of each shape, with forgetting
	flow     policies.Flow
	desired  int
	changes  []int // of the target
}

// maxWait is how long requests wait before they are refused.
const maxWait = 30 * second

func newWorld(t *testing.T, seed uint64, replicas int, load func(policies.Micros) float64) *world {
	t.Helper()
	w := &world{rng: rand.New(rand.NewPCG(seed, 9)), load: load, target: replicas, least: 1, cold: 0.5, scaler: testkit.Must(planner.NewScaler(planner.ScalerConfig{}))}
	edges := policies.BucketEdges(16384, 1)
	w.flow = policies.NewFlow(edges)
	for range replicas {
		w.replicas = append(w.replicas, -hour)
	}
	all := policies.NewFlow(edges)
	for _, s := range shapes {
		// The flow of one request a second, which has lasted for ever.
		c := partition.NewFlowCounter(edges, 1)
		c.Rates(-100) // the window begins
		c.CountArrival(0, s.input, 0)
		c.CountTokens(0, s.input+s.output, int(s.output))
		c.CountFinish(0, s.input, s.output)
		one := c.Rates(0)
		w.unit = append(w.unit, one)
		w.rates = append(w.rates, s.share*load(0))
		addTo(all, one, s.share)
	}
	// What a replica can serve: its time, its memory and its batch limit the rate of each, whatever there are.
	for low, high := 0.0, 1000.0; high-low > 1e-6; {
		mid := (low + high) / 2
		flow := policies.NewFlow(edges)
		addTo(flow, all, 100*mid)
		if n, err := planner.Demand(w.workload(flow), 1, 1); err == nil && n.Replicas <= 100 {
			low = mid
		} else {
			high = mid
		}
		w.capacity = low
	}
	return w
}

// addTo adds share times a flow to a sum.
func addTo(sum, f policies.Flow, share float64) {
	from := f.Columns()
	for i, column := range sum.Columns() {
		for b := range column {
			column[b] += share * from[i][b]
		}
	}
}

// workload is what the planner would be asked about a flow.
func (w *world) workload(f policies.Flow) policies.Workload {
	return policies.Workload{
		Flow: f, Cost: policytest.H200Cost(), Capacity: policies.Capacity{KV: 200_000, Batch: 256},
		Limits: policies.Limits{Pooling: 0.3}, Transfer: policies.Transfer{Base: 0.005, PerToken: 5e-6},
	}
}

// ideal returns how many replicas the load at a time needs, without noise.
func (w *world) ideal(at policies.Micros) int {
	flow := policies.NewFlow(w.flow.Edges)
	for i, s := range shapes {
		addTo(flow, w.unit[i], s.share*w.load(at))
	}
	return testkit.Must(planner.Demand(w.workload(flow), 1, planner.DefaultScaleUtilisation)).Replicas
}

// ready counts the replicas that serve, and the share of their prompts that is computed because they are new.
func (w *world) ready() (n, cold float64) {
	for _, started := range w.replicas {
		if age := w.now - started; age >= startDelay {
			n++
			if age < startDelay+warmUp {
				cold++
			}
		}
	}
	if n > 0 {
		cold /= n
	}
	return n, cold
}

// second lets one second pass.
func (w *world) second() {
	w.now += second
	ready, cold := w.ready()
	capacity := w.capacity * ready / (1 + w.cold*cold/2) // half of a request's work is its prompt
	decay := math.Exp(-1 / inSeconds(planner.DefaultScaleMemory))
	arrived := 0
	counts := make([]float64, len(shapes))
	for i, s := range shapes {
		n := poisson(w.rng, s.share*w.load(w.now))
		arrived += n
		counts[i] = float64(n)
	}
	w.queue += float64(arrived)
	served := min(w.queue, capacity)
	if w.admit {
		if most := served + capacity*inSeconds(maxWait); w.queue > most {
			w.refused += w.queue - most
			w.queue = most
		}
	}
	w.queue -= served
	w.flow = policies.NewFlow(w.flow.Edges)
	for i, s := range shapes {
		share := s.share
		if arrived > 0 && served == float64(arrived) {
			share = counts[i] / float64(arrived)
		}
		w.rates[i] = w.rates[i]*decay + (1-decay)*served*share
		addTo(w.flow, w.unit[i], w.rates[i])
	}
	for b := range w.flow.Prefill {
		w.flow.Prefill[b] *= 1 + w.cold*cold
		w.flow.Prefill2[b] *= 1 + w.cold*cold
	}
	w.flow.Seen = 5000
}

func inSeconds(t policies.Micros) float64 { return float64(t) / float64(second) }

// poisson draws a Poisson number: by its definition for a small mean, else by the normal distribution.
func poisson(rng *rand.Rand, mean float64) int {
	if mean > 50 {
		return max(0, int(math.Round(mean+math.Sqrt(mean)*rng.NormFloat64())))
	}
	n := -1
	for p, least := 1.0, math.Exp(-mean); p > least; n++ {
		p *= rng.Float64()
	}
	return n
}

// recommend steps the Scaler, as at the end of a planning period.
func (w *world) recommend() planner.Recommendation {
	ready, _ := w.ready()
	r := w.scaler.Step(w.now, planner.ScaleSample{
		Workload: w.workload(w.flow), Present: len(w.replicas), Reporting: int(ready), Waiting: int(w.queue), Refused: uint64(w.refused),
	})
	w.desired = r.Desired
	return r
}

// follow is one round of HPA with the metric as an average value of 1 a replica: no change within the
// tolerance; else as many as the metric, at most doubled or four more, and none fewer than its minimum.
func (w *world) follow() {
	current := len(w.replicas)
	if ratio := float64(w.desired) / float64(current); math.Abs(ratio-1) <= tolerance {
		return
	}
	next := max(min(w.desired, max(2*current, current+4)), w.least)
	if next == current {
		return
	}
	for len(w.replicas) < next {
		w.replicas = append(w.replicas, w.now)
	}
	w.replicas = w.replicas[:next] // the youngest leave, as from a Deployment
	w.changes = append(w.changes, next-w.target)
	w.target = next
}

// outcome is what a run of the loop was like.
type outcome struct {
	turns    int             // changes of the target's direction
	scalings int             // changes of the target
	overload policies.Micros // time with a queue of more than a second's requests, in all
	longest  policies.Micros // and at a stretch
	cost     float64         // replicas, started ones, over what the load needs at each moment
	most     int
}

func (o outcome) String() string {
	return fmt.Sprintf("%d scalings, %d turns, overloaded for %d s, %d s at a stretch, cost %.3f, at most %d replicas",
		o.scalings, o.turns, o.overload/second, o.longest/second, o.cost, o.most)
}

// run runs the loop until a time.
func (w *world) run(until policies.Micros) (o outcome) {
	stretch, used, needed := policies.Micros(0), 0.0, 0.0
	for w.now < until {
		w.second()
		if w.now%(10*second) == 0 {
			w.recommend()
		}
		if w.now%hpaSync == 0 {
			w.follow()
		}
		if w.now%minute == 0 {
			used += float64(len(w.replicas))
			needed += float64(w.ideal(w.now))
		}
		stretch += second
		if w.queue <= w.load(w.now) {
			stretch = 0
		} else {
			o.overload += second
		}
		o.longest, o.most = max(o.longest, stretch), max(o.most, len(w.replicas))
	}
	for i, c := range w.changes {
		o.scalings++
		if i > 0 && (c > 0) != (w.changes[i-1] > 0) {
			o.turns++
		}
	}
	o.cost = used / needed
	return o
}

// day is a load like that of a day: quiet at night, with two peaks.
func day(low, high float64) func(policies.Micros) float64 {
	return func(t policies.Micros) float64 {
		h := float64(t%(24*hour)) / float64(hour)
		bump := func(at, width float64) float64 { return math.Exp(-(h - at) * (h - at) / (2 * width * width)) }
		return low + (high-low)*min(1, bump(11, 2.2)+0.9*bump(17, 2.5))
	}
}

// TestLoopOverADay follows a day: the number turns a few times, with the load, no request waits because of
// it, and it costs little more than the replicas that the load needs at each moment.
func TestLoopOverADay(t *testing.T) {
	for _, size := range []float64{1, 8} {
		for seed := range uint64(testkit.Size(1, 5)) {
			probe := newWorld(t, seed, 1, day(1, 1))
			rate := probe.capacity * size
			w := newWorld(t, seed, int(3*size), day(rate, 8*rate))
			o := w.run(24 * hour)
			t.Logf("%v replicas at night, seed %d: %v", size, seed, o)
			if o.turns > 7 {
				t.Errorf("the number turns %d times, and the load 3 times", o.turns)
			}
			if o.overload > 0 {
				t.Errorf("overloaded for %d s", o.overload/second)
			}
			if o.cost > 1.15 {
				t.Errorf("it costs %.3f of what the load needs", o.cost)
			}
		}
	}
}

// TestLoopOverASpike has four times the load at once, and back after an hour: the fleet is overloaded for as
// long as replicas need to start and until they have worked off what has come meanwhile, goes up once and
// down once, and does not take the queue for demand.
func TestLoopOverASpike(t *testing.T) {
	for _, admit := range []bool{false, true} {
		for seed := range uint64(testkit.Size(2, 20)) {
			probe := newWorld(t, seed, 1, day(1, 1))
			rate := 6 * probe.capacity
			load := func(at policies.Micros) float64 {
				if at > hour && at <= 2*hour {
					return 4 * rate
				}
				return rate
			}
			w := newWorld(t, seed, 1, load)
			for len(w.replicas) < w.ideal(0) {
				w.replicas = append(w.replicas, -hour)
			}
			w.admit = admit
			o := w.run(4 * hour)
			t.Logf("admission %v, seed %d: %v", admit, seed, o)
			if o.turns > 1 {
				t.Errorf("the number turns %d times", o.turns)
			}
			// The flow shows the load after a minute and a half, and then the replicas start. What waits by then,
			// for half a minute if others are refused, is worked off by the quarter of the fleet that is not busy.
			late := startDelay + 90*second + 5*minute/2
			if !admit {
				late = startDelay + 90*second + 7*minute
			}
			if o.longest > late {
				t.Errorf("overloaded for %d s", o.longest/second)
			}
			if want := w.ideal(90 * minute); o.most > want*5/4 {
				t.Errorf("%d replicas are started for a load that needs %d", o.most, want)
			}
		}
	}
}

// TestLoopIsStill has a constant load: the number hardly changes, although arrivals are random, caches are
// cold on new replicas, and the fleet begins with too few or too many.
func TestLoopIsStill(t *testing.T) {
	for _, replicas := range []int{1, 3, 40} {
		for _, size := range []float64{0.4, 3, 20} {
			probe := newWorld(t, 1, 1, day(1, 1))
			w := newWorld(t, uint64(replicas), replicas, day(size*probe.capacity, size*probe.capacity))
			w.cold = 1
			first := w.run(hour)
			w.changes = nil
			rest := w.run(5 * hour)
			t.Logf("load of %v, %d replicas at first: %v, then %v", size, replicas, first, rest)
			if first.turns > 1 || rest.scalings > 2 {
				t.Errorf("load of %v, %d replicas at first: %d turns within an hour, then %d scalings in 4 hours", size, replicas, first.turns, rest.scalings)
			}
		}
	}
}

// TestDemandEqualsPlanner compares Demand with the planner: with so many replicas it has a plan within the
// limits, with one less it has none.
func TestDemandEqualsPlanner(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	checked := 0
	for range testkit.Size(400, 4000) {
		w := policytest.RandomWorkload(rng)
		share, growth := 0.3+0.7*rng.Float64(), 3*rng.Float64()
		need, err := planner.Demand(w, growth, share)
		if err != nil || need.Replicas > 500 {
			continue
		}
		checked++
		restricted := planner.ScaleFlow(w, growth/share)
		plans := func(n int) bool {
			restricted.Replicas = n
			_, err := partition.Exact{}.Partition(restricted)
			return n > 0 && err == nil
		}
		if !plans(need.Replicas) || plans(need.Replicas-1) {
			t.Fatalf("%d replicas are said to be the least that plan: %v, with one less %v: %+v", need.Replicas, plans(need.Replicas), plans(need.Replicas-1), w)
		}
		if need.Work > float64(need.Replicas)*share*(1+1e-9) {
			t.Fatalf("%v of %d replicas are busy, of which the share is %v", need.Work, need.Replicas, share)
		}
		if w.Flow.Tokens[0] > 0 && growth > 0 && need.Work == 0 {
			t.Fatalf("no work: %+v", w)
		}
	}
	if checked < 200 {
		t.Errorf("only %d workloads can be served", checked)
	}
}
