package policies_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b)) }

// TestQoE checks eq. 1 against the sum over requests, and the identities the
// planner rests on.
func TestQoE(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		c := policies.QoE{D0: 1 + rng.Float64(), D1: rng.Float64(), D2: rng.Float64(), D3: rng.Float64(), D4: rng.Float64()}
		var whole, left, right policies.Batch
		n := 1 + rng.IntN(20)
		request := c.D0
		for i := range n {
			input := policies.Tokens(rng.IntN(1000))
			length := input + policies.Tokens(rng.IntN(1000))
			request += c.D1 + c.D2*float64(input) + c.D3*float64(input)*float64(input) + c.D4*float64(length)
			whole = whole.Add(input, length)
			if i%2 == 0 {
				left = left.Add(input, length)
			} else {
				right = right.Add(input, length)
			}
		}
		if got := c.OfRequest(whole); !near(got, request) {
			t.Fatalf("request QoE %v, want %v", got, request)
		}
		if got := c.OfBatch(whole); !near(got, float64(n)*request) {
			t.Fatalf("batch QoE %v, want n times %v", got, request)
		}
		if sum := left.Plus(right); sum != whole {
			t.Fatalf("halves add to %+v, want %+v", sum, whole)
		}
		// k parts cost n·D0 + w/k together: convex in k, falling.
		w := c.OfBatch(whole) - float64(n)*c.D0
		for k := 1; k < 5; k++ {
			if got, want := float64(k)*c.OfBatch(whole.Divide(k)), float64(n)*c.D0+w/float64(k); !near(got, want) {
				t.Fatalf("%d parts cost %v, want %v", k, got, want)
			}
		}
		if got := c.Scale(2).OfBatch(whole); !near(got, 2*c.OfBatch(whole)) {
			t.Fatalf("twice the cost gives %v", got)
		}
	}
	if q := (policies.QoE{D0: 3}).OfBatch(policies.Batch{}); q != 0 {
		t.Errorf("the empty batch costs %v", q)
	}
}

// FuzzPlan checks that a plan which validates answers every lookup in range.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{10, 1, 20, 2}, int64(15))
	f.Fuzz(func(t *testing.T, shape []byte, length int64) {
		p := policies.Plan{Model: "m"}
		low := policies.Tokens(0)
		for i := 0; i+1 < len(shape) && i < 40; i += 2 {
			high := low + policies.Tokens(int8(shape[i]))
			if i+3 >= len(shape) {
				high = policies.Unbounded
			}
			p.Stages = append(p.Stages, policies.Stage{Low: low, High: high, Replicas: []policies.ReplicaID{policies.ReplicaID(rune('a' + shape[i+1]%32))}})
			low = high
		}
		if p.Validate() != nil {
			return
		}
		at := p.StageOf(policies.Tokens(length))
		if s := p.Stages[at]; length >= 0 && (policies.Tokens(length) < s.Low || policies.Tokens(length) >= s.High && s.High != policies.Unbounded) {
			t.Errorf("length %d is not in its stage %+v", length, s)
		}
		for i, s := range p.Stages {
			if p.StageOfReplica(s.Replicas[0]) != i {
				t.Errorf("replica of stage %d found elsewhere", i)
			}
		}
	})
}
