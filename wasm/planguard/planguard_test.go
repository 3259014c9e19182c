package planguard

import (
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// proposer is a partitioner that a test defines.
type proposer func(policies.Workload) (policies.Partition, error)

func (f proposer) Partition(w policies.Workload) (policies.Partition, error) { return f(w) }

// TestNativeProposalsPass checks that the proposals of a native partitioner are accepted
// unchanged, with the host's own predictions.
func TestNativeProposalsPass(t *testing.T) {
	policytest.TestPartitioner(t, Planner{Proposer: partition.Exact{}, Native: partition.Exact{}, Refused: func(err error) {
		if !strings.Contains(err.Error(), "nothing proposed") {
			t.Error(err)
		}
	}})
	w := policytest.ChatWorkload(policies.BucketEdges(131072, 4), 16, 0.6, 1)
	want := testkit.Must(partition.Exact{}.Partition(w))
	got, err := Planner{Proposer: partition.Exact{}, Native: partition.Exact{}}.Partition(w)
	if err != nil || !reflect.DeepEqual(got.Cuts, want.Cuts) || !reflect.DeepEqual(got.Counts, want.Counts) || math.Abs(got.Cost-want.Cost) > 1e-9*want.Cost {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// TestLies checks that no number of a proposal is used, and that no invalid partition is
// accepted.
func TestLies(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(131072, 4), 16, 0.6, 1)
	own, err := partition.Exact{}.Partition(w)
	if err != nil || len(own.Cuts) == 0 {
		t.Fatalf("%+v, %v", own, err)
	}
	lie := func(change func(*policies.Partition)) proposer {
		return func(policies.Workload) (policies.Partition, error) {
			p := policies.Partition{Cuts: append([]policies.Tokens(nil), own.Cuts...), Counts: append([]int(nil), own.Counts...)}
			change(&p)
			return p, nil
		}
	}
	for reason, p := range map[string]proposer{
		"":                   lie(func(p *policies.Partition) { p.Cost, p.OneStage, p.Exact = -1e9, math.NaN(), true }),
		"with 0 cuts":        lie(func(p *policies.Partition) { p.Cuts = nil }),
		"the stages have 17": lie(func(p *policies.Partition) { p.Counts[0]++ }),
		"of 16 replicas":     lie(func(p *policies.Partition) { p.Counts[0] = -1 }),
		"grow strictly":      lie(func(p *policies.Partition) { p.Cuts[0] = 0 }),
		"∞":                  lie(func(p *policies.Partition) { p.Cuts[len(p.Cuts)-1] = policies.Unbounded }),
		"the proposal costs": lie(func(p *policies.Partition) { p.Cuts, p.Counts = []policies.Tokens{w.Flow.Edges[1]}, []int{4, 12} }),
		"cannot be priced":   lie(func(p *policies.Partition) { p.Cuts, p.Counts = []policies.Tokens{64}, []int{15, 1} }),
		"nothing proposed": func(policies.Workload) (policies.Partition, error) {
			return policies.Partition{}, policies.ErrInfeasible
		},
		"nothing proposed: trap": func(policies.Workload) (policies.Partition, error) { return policies.Partition{}, errors.New("trap") },
		"stages, at most 8 may be": lie(func(p *policies.Partition) {
			p.Cuts, p.Counts = nil, nil
			for i := range 16 {
				p.Counts = append(p.Counts, 1)
				if i > 0 {
					p.Cuts = append(p.Cuts, policies.Tokens(16*i))
				}
			}
		}),
	} {
		var kept error
		got, err := Planner{Proposer: p, Native: partition.Exact{}, Refused: func(err error) { kept = err }}.Partition(w)
		if err != nil || !reflect.DeepEqual(got.Cuts, own.Cuts) || !reflect.DeepEqual(got.Counts, own.Counts) || math.Abs(got.Cost-own.Cost) > 1e-9*own.Cost {
			t.Errorf("%q: %+v, %v", reason, got, err)
		}
		if reason == "" && (kept != nil || got.Exact) || reason != "" && (kept == nil || !strings.Contains(kept.Error(), reason)) {
			t.Errorf("%q: kept because of %v", reason, kept)
		}
	}
}

// TestMeddlers checks that a proposer that changes its arguments changes only its own copy.
func TestMeddlers(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(65536, 2), 4, 0.5, 3)
	before := clone(w)
	_, err := Planner{Native: partition.Exact{}, Proposer: proposer(func(w policies.Workload) (policies.Partition, error) {
		for i := range w.Flow.Edges {
			w.Flow.Edges[i], w.Flow.Tokens[i], w.Flow.Reads[i], w.Flow.Weight[i] = 0, 0, 0, 0
		}
		return policies.Partition{Counts: []int{4}}, nil
	})}.Partition(w)
	if err != nil || !reflect.DeepEqual(w, before) {
		t.Errorf("the workload was changed, %v", err)
	}
}

// TestSlack checks by which share a proposal may cost more.
func TestSlack(t *testing.T) {
	w := policytest.ChatWorkload(policies.BucketEdges(131072, 4), 16, 0.6, 1)
	rng := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for range 500 {
		edges := w.Flow.Edges
		p := policies.Partition{Cuts: []policies.Tokens{edges[1+rng.IntN(len(edges)-1)]}}
		k := 1 + rng.IntN(15)
		p.Counts = []int{k, 16 - k}
		kept := false
		got, err := Planner{Native: partition.Exact{}, Slack: 0.5, Refused: func(error) { kept = true },
			Proposer: proposer(func(policies.Workload) (policies.Partition, error) { return p, nil })}.Partition(w)
		own, _ := partition.Exact{}.Partition(w)
		priced, priceErr := partition.Exact{}.Price(w, p.Cuts, p.Counts)
		good := priceErr == nil && priced.Cost <= 1.5*own.Cost
		if err != nil || kept == good || good && !reflect.DeepEqual(got, priced) || !good && !reflect.DeepEqual(got.Cuts, own.Cuts) {
			t.Fatalf("%+v: kept %v, costs %v of %v, got %+v, %v", p, kept, priced.Cost, own.Cost, got, err)
		}
		if good {
			taken++
		}
	}
	if taken == 0 || taken == 500 {
		t.Errorf("%d of 500 taken: the test says nothing", taken)
	}
}

// border returns a random border.
func border(rng *rand.Rand) policies.BoundaryView {
	b := policies.BoundaryView{Boundary: policies.Tokens(200 + rng.IntN(4000)), High: policies.Unbounded, Peers: 1 + rng.IntN(4), Successors: 1 + rng.IntN(4), QoE: policytest.H200QoE()}
	some := func(n int) (out []policies.Sequence) {
		for range n {
			in := policies.Tokens(1 + rng.IntN(4000))
			out = append(out, policies.Sequence{Input: in, Length: in + policies.Tokens(rng.IntN(2000))})
		}
		return out
	}
	b.Local, b.Next = some(rng.IntN(60)), some(rng.IntN(60))
	return b
}

// fixed proposes one boundary.
type fixed policies.Tokens

func (f fixed) Refine(b policies.BoundaryView) policies.Tokens {
	for _, s := range [][]policies.Sequence{b.Local, b.Next} {
		clear(s) // changes its arguments, too
	}
	return policies.Tokens(f)
}

// TestRefine checks that, whatever is proposed, the answer lies between the neighbours and is
// no worse than allowed, and that the native refiner's proposals are accepted.
func TestRefine(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	moved, refused := 0, 0
	for range 2000 {
		b := border(rng)
		before := Quality(b, b.Boundary)
		for _, p := range []policies.Refiner{fixed(rng.IntN(8000) - 1000), fixed(math.MaxInt64), fixed(math.MinInt64)} {
			got := Refiner{Proposer: p}.Refine(b)
			if got <= b.Low || got >= b.High || Quality(b, got) > before*(1+DefaultWorse) {
				t.Fatalf("%v came through for %+v", got, b)
			}
		}
		native := partition.WeightedRefiner{Damping: partition.Damping{Smoothing: 1000}}
		got := Refiner{Proposer: native, Worse: -1, Refused: func(err error) { refused++ }}.Refine(b)
		if got != b.Boundary {
			moved++
		}
	}
	// Without damping, the native refiner proposes the boundary with the best Quality.
	if refused > 0 || moved < 1000 {
		t.Errorf("the native refiner moved %d times and was refused %d times", moved, refused)
	}
}

// guardFunc is a guard of the tests.
type guardFunc func(abi.Change) ([]abi.Denial, error)

func (f guardFunc) Check(c abi.Change) ([]abi.Denial, error) { return f(c) }

type asked struct{}

func (asked) Guard(c abi.Change) (abi.Denial, bool) {
	return abi.Denial{Code: 4, Stage: 1, Detail: "too small"}, len(c.Next.Stages) > 1
}

func change() abi.Change {
	return abi.Change{
		Now: policies.Plan{Model: "m", Epoch: 4, Stages: []policies.Stage{{High: policies.Unbounded, Replicas: []policies.ReplicaID{"a", "b"}}}},
		Next: policies.Plan{Model: "m", Epoch: 5, Stages: []policies.Stage{
			{High: 100, Replicas: []policies.ReplicaID{"a"}}, {Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}}}}}
}

func TestCheck(t *testing.T) {
	silent := guardFunc(func(c abi.Change) ([]abi.Denial, error) {
		c.Next.Stages[0].Replicas[0] = "meddled" // changes its own copy
		return nil, nil
	})
	broken := guardFunc(func(abi.Change) ([]abi.Denial, error) { return nil, errors.New("no time") })
	rude := guardFunc(func(abi.Change) ([]abi.Denial, error) {
		return []abi.Denial{{Code: 1, Stage: 99, Detail: strings.Repeat("x\n", 500)}}, nil
	})
	for _, c := range []struct {
		name   string
		edit   func(*abi.Change)
		guards []NamedGuard
		want   string
	}{
		{"good", nil, []NamedGuard{{"a", silent}, {"b", silent}}, ""},
		{"first plan", func(c *abi.Change) { c.Now = policies.Plan{} }, nil, ""},
		{"denied", nil, []NamedGuard{{"a", silent}, {"site", PolicyGuard{asked{}}}}, `plan denied: site, rule 4, stage 1, "too small"`},
		{"cannot judge", nil, []NamedGuard{{"a", broken}, {"site", PolicyGuard{asked{}}}}, `plan denied: a, rule 0, "cannot judge: no time"; site, rule 4, stage 1, "too small"`},
		{"rude", nil, []NamedGuard{{"r", rude}}, `plan denied: r, rule 1, "x\nx\n`},
		{"epoch", func(c *abi.Change) { c.Next.Epoch = 4 }, nil, "plan refused: epoch 4 after 4"},
		{"model", func(c *abi.Change) { c.Next.Model = "n" }, nil, `plan refused: model "n" instead of "m"`},
		{"gap", func(c *abi.Change) { c.Next.Stages[1].Low = 200 }, []NamedGuard{{"a", silent}}, "plan refused: "},
	} {
		ch := change()
		if c.edit != nil {
			c.edit(&ch)
		}
		err := Check(ch, c.guards)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("%s: the error has %d bytes", c.name, len(err.Error()))
		}
	}
	var denied *Denied
	if err := Check(change(), []NamedGuard{{"site", PolicyGuard{asked{}}}}); !errors.As(err, &denied) || len(denied.Denials) != 1 || denied.Denials[0].Stage != 1 {
		t.Errorf("%+v", denied)
	}
}
