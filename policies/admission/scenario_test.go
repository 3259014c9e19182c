package admission_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// TestScenarios runs testdata/*.txt (-rewrite rewrites the expected output). The commands:
//
//	engine D0=0.02 D2=0.0001    which is also the engine without this command
//	decider Capacity=1000 Batch=8 Slowdown=5    on the engine named last
//	work Requests=4 Demand=900 Waiting=0 Output=50 Iteration=0.02 Alone=1
//	ask Input=100 Output=50 Share=1
//	share own=500 all=1000 weights=2 Weight=1 Level=0
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(*testing.T) testkit.Player {
		d, w, engine := admission.Decider{}, admission.Work{}, cost
		return func(words []string) ([]string, error) {
			switch words[0] {
			case "engine":
				engine = policies.Cost{}
				return nil, testkit.SetFields(&engine, words[1:])
			case "decider":
				d = admission.Decider{Cost: engine}
				return nil, testkit.SetFields(&d, words[1:])
			case "work":
				w = admission.Work{}
				return nil, testkit.SetFields(&w, words[1:])
			case "ask":
				q := admission.Request{Share: 1}
				if err := testkit.SetFields(&q, words[1:]); err != nil {
					return nil, err
				}
				v := d.Decide(w, q)
				if v.Admit {
					return []string{fmt.Sprintf("admit: waits %.2f s, takes %.2f s, alone %.2f s", v.Wait, v.Latency, v.Alone)}, nil
				}
				return []string{fmt.Sprintf("refuse, again after %d s: waits %.2f s, takes %.2f s, alone %.2f s", v.Retry, v.Wait, v.Latency, v.Alone)}, nil
			case "share":
				var s struct {
					Own, All      policies.Tokens
					Weights       int
					Weight, Level int
				}
				if err := testkit.SetFields(&s, words[1:]); err != nil {
					return nil, err
				}
				return []string{fmt.Sprintf("%.3f", admission.Share(admission.Tenant{Weight: s.Weight, Level: s.Level}, s.Own, s.All, s.Weights))}, nil
			}
			return nil, fmt.Errorf("no command %q", words[0])
		}
	})
}

var cost = policies.Cost{D0: 0.02, D2: 0.0001}

// TestAgainstSimulation compares the predicted wait with that of a simulated cache: requests of
// one kind, admitted in order, each of which holds its final length until it has ended.
func TestAgainstSimulation(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		input, output := policies.Tokens(10+rng.IntN(500)), policies.Tokens(20+rng.IntN(300))
		places, ahead := 5+rng.IntN(40), 0
		length := input + output
		capacity := length * policies.Tokens(places)
		ahead = places + rng.IntN(4*places)
		// Those that run are evenly spread over their lives; each end lets the next one begin.
		service := float64(output) * cost.D0
		ends := make([]float64, places)
		for i := range ends {
			ends[i] = service * (float64(i) + 0.5) / float64(places)
		}
		start := 0.0
		for n := places; n <= ahead; n++ { // the last one is the request that asks
			first := 0
			for i := range ends {
				if ends[i] < ends[first] {
					first = i
				}
			}
			start = ends[first]
			ends[first] += service
		}
		d := admission.Decider{Cost: cost, Capacity: capacity}
		v := d.Decide(admission.Work{Requests: ahead, Demand: length * policies.Tokens(ahead), Output: output}, admission.Request{Input: input, Output: output, Share: 1})
		if math.Abs(v.Wait-start) > 1.5*service/float64(places)+1e-9 {
			t.Fatalf("%d places, %d ahead of %d+%d tokens: predicted a wait of %.3f s, simulated %.3f s", places, ahead, input, output, v.Wait, start)
		}
		if want := v.Wait <= 0.1 || v.Latency <= admission.DefaultSlowdown*v.Alone+1e-9; v.Admit != want {
			t.Fatalf("%+v is admitted: %v", v, v.Admit)
		}
		if !v.Admit && (v.Retry < 1 || v.Retry > 60) {
			t.Fatalf("%+v", v)
		}
	}
}

// TestMoreWorkNeverAdmits checks that a request which is refused is also refused by a replica with
// more work, and that a lower share never helps.
func TestMoreWorkNeverAdmits(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		d := admission.Decider{Cost: policies.Cost{D0: 0.01, D1: 0.0001, D2: 0.00005, D4: 1e-8}, Capacity: policies.Tokens(1 + rng.IntN(100_000)), Batch: rng.IntN(64)}
		w := admission.Work{Requests: rng.IntN(200), Demand: policies.Tokens(rng.IntN(300_000)), Waiting: policies.Tokens(rng.IntN(50_000)), Output: policies.Tokens(rng.IntN(400)), Iteration: rng.Float64() / 10}
		q := admission.Request{Input: policies.Tokens(rng.IntN(5000)), Output: policies.Tokens(1 + rng.IntN(500)), Share: rng.Float64()}
		if d.Decide(w, q).Admit {
			continue
		}
		more, lower := w, q
		more.Demand += policies.Tokens(rng.IntN(10_000))
		more.Waiting += policies.Tokens(rng.IntN(10_000))
		lower.Share *= rng.Float64()
		if d.Decide(more, q).Admit || d.Decide(w, lower).Admit {
			t.Fatalf("%+v refuses %+v with %+v, but not with more work or a lower share", d, q, w)
		}
	}
}
