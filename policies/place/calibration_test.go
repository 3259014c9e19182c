package place

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

// engineRun is an engine whose iterations take so many times as long as testEngine says.
type engineRun struct {
	slow    float64
	now     float64
	engine  Engine
	current []Resident
}

// iterate runs one iteration: prompts that wait are computed in it.
func (r *engineRun) iterate() {
	n, held, longest, prompts := 0.0, 0.0, 0.0, 0.0
	for i := range r.current {
		one := &r.current[i]
		if one.runs() {
			n, held = n+1, held+float64(one.Input+one.Output)
			longest = max(longest, float64(one.Input+one.Output))
		} else {
			prompts += r.engine.prompt(float64(one.Cached), float64(one.Input))
		}
		one.Output++
	}
	r.now += r.slow * (r.engine.seconds(max(n, 1), held, longest) + prompts)
}

// observe lets c observe so many seconds, ten times a second: requests come, and end after 50 tokens.
func (r *engineRun) observe(c *Calibration, rng *rand.Rand, lasts float64) {
	next := r.now
	for end := r.now + lasts; r.now < end; {
		if rng.Float64() < 0.02 {
			r.current = append(r.current, Resident{
				Input: 100 + policies.Tokens(rng.IntN(2000)), Cached: 50, Arrived: policies.Micros(r.now * 1e6),
			})
		}
		if len(r.current) > 0 && r.current[0].Output >= 200 {
			r.current = r.current[1:]
		}
		r.iterate()
		if r.now >= next {
			c.Observe(&r.engine, &State{At: policies.Micros(r.now * 1e6)}, r.current)
			next = r.now + 0.1
		}
	}
}

// TestCalibration checks that the slowdown of an engine is found, follows a change, and stays within its bounds.
func TestCalibration(t *testing.T) {
	for _, slow := range []float64{0.2, 0.7, 1, 1.4, 2, 5} {
		var c Calibration
		if c.Slowdown() != 1 {
			t.Fatalf("before it has learnt anything: %v", c.Slowdown())
		}
		r, rng := &engineRun{slow: slow, engine: testEngine}, rand.New(rand.NewPCG(1, 2))
		r.current = []Resident{{Input: 1000, Output: 1}, {Input: 300, Output: 1}, {Input: 3000, Output: 1}}
		r.observe(&c, rng, 60)
		want := min(max(slow, 1/MaxSlowdown), MaxSlowdown)
		if got := c.Slowdown(); math.Abs(got/want-1) > 0.08 {
			t.Errorf("an engine that is %v times as slow: %v", slow, got)
		}
		r.slow = 1
		r.observe(&c, rng, 120)
		if got := c.Slowdown(); got != 1 { // no small difference remains
			t.Errorf("it was %v times as slow, and is no longer: %v", slow, got)
		}
	}
}

// TestCalibrationIgnores checks what says nothing of an engine's speed, and that one strange pair of calls changes little.
func TestCalibrationIgnores(t *testing.T) {
	running, waiting := Resident{Input: 1000, Output: 10}, Resident{Input: 1000, Arrived: 5}
	later := running
	later.Output += 5
	const second = policies.Second
	for name, pairs := range map[string][][]Resident{
		"no requests":                           {nil, nil, nil},
		"a prompt of long ago":                  {{running, waiting}, {later, waiting}},
		"a hanging engine":                      {{running}, {running}, {running}},
		"all others have ended":                 {{running}, {{Input: 7, Output: 3, Arrived: second}}},
		"a request that came to an idle engine": {{{Input: 1000, Output: 10, Arrived: 3 * second / 2}}, {{Input: 1000, Output: 15, Arrived: 3 * second / 2}}},
		"a preempted request":                   {{running, {Input: 9, Output: 9, Prefilling: true}}, {later}},
	} {
		var c Calibration
		for i, residents := range pairs {
			c.Observe(&testEngine, &State{At: policies.Micros(i+1) * second}, residents)
		}
		if got := c.Slowdown(); got != 1 {
			t.Errorf("%s: %v", name, got)
		}
	}
	var c Calibration
	c.Observe(&testEngine, &State{At: second}, []Resident{running})
	c.Observe(&testEngine, &State{At: 2 * second}, []Resident{later})
	if c.log <= 0 || c.log > maxSurprise {
		t.Errorf("five tokens in a second: e^%v", c.log)
	}
}

// TestCalibrationCountsEnds checks that a long request that ended between two calls counts for half of the time.
func TestCalibrationCountsEnds(t *testing.T) {
	one, long := Resident{Input: 1000, Output: 10}, Resident{Input: 100_000, Output: 10}
	took := 0.0
	for i := 0.0; i < 10; i++ {
		if took += testEngine.seconds(1, 1010+i, 1010+i); i < 5 {
			took += testEngine.seconds(2, 101_020+2*i, 100_010+i) - testEngine.seconds(1, 1010+i, 1010+i)
		}
	}
	var c Calibration
	c.Observe(&testEngine, &State{At: policies.Second}, []Resident{one, long})
	one.Output += 10
	c.Observe(&testEngine, &State{At: policies.Second + policies.Micros(took*1e6)}, []Resident{one})
	if c.log == 0 || math.Abs(c.log) > 0.001 {
		t.Errorf("e^%v", c.log)
	}
}

// TestSlowReplicaCostsMore checks that a replica's price follows what it reports of its speed, within bounds.
func TestSlowReplicaCostsMore(t *testing.T) {
	w, typical := Waiting{Length: 2000}.Weigh(100), testEngine.typical()
	price := func(iteration float64) int64 {
		p := newPriced()
		p.Report(0, &State{Iteration: iteration})
		return p.price(0, w)
	}
	as, idle := func(times float64) int64 { return price(times * typical) }, price(0)
	if as(1) != idle || as(1.5) <= idle || as(0.7) >= idle {
		t.Errorf("idle replicas cost %v, %v when slow and %v when fast", as(1), as(1.5), as(0.7))
	}
	if as(100) != as(MaxSlowdown) || as(1e-9) != as(1/MaxSlowdown) {
		t.Errorf("beyond the bounds they cost %v and %v", as(100), as(1e-9))
	}
}
