package policies_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
)

// validator is any of the words that can check itself.
type validator interface{ Validate() error }

// plan returns a valid plan after an edit.
func plan(edit func(*policies.Plan)) policies.Plan {
	p := policies.Plan{Model: "m", Stages: []policies.Stage{
		{Low: 0, High: 100, Replicas: []policies.ReplicaID{"a", "b"}},
		{Low: 100, High: policies.Unbounded, Replicas: []policies.ReplicaID{"c"}},
	}}
	edit(&p)
	return p
}

// workload returns a valid workload after an edit.
func workload(edit func(*policies.Workload)) policies.Workload {
	w := policies.Workload{
		Flow:     policies.NewFlow([]policies.Tokens{0, 16, 32}),
		Snapshot: make([]policies.Batch, 3),
		QoE:      policies.QoE{D0: 1},
		Cost:     policies.Cost{D0: 1},
		Capacity: policies.Capacity{KV: 1, Batch: 1},
		Replicas: 1,
	}
	edit(&w)
	return w
}

func replica(edit func(*policies.Replica)) policies.Replica {
	r := policies.Replica{ID: "a", Model: "m", Address: "h:1", Capacity: policies.Capacity{KV: 1, Batch: 1}}
	edit(&r)
	return r
}

// TestValidate breaks every numbered invariant once; the empty want is a valid value.
func TestValidate(t *testing.T) {
	type P = policies.Plan
	type W = policies.Workload
	type R = policies.Replica
	stages := func(n int) func(*P) {
		return func(p *P) {
			p.Stages = make([]policies.Stage, n)
			for i := range p.Stages {
				low := policies.Tokens(100 * i)
				p.Stages[i] = policies.Stage{Low: low, High: low + 100, Replicas: []policies.ReplicaID{policies.ReplicaID(rune('a' + i))}}
			}
			p.Stages[n-1].High = policies.Unbounded
		}
	}
	for _, c := range []struct {
		name string
		v    validator
		want string // prefix of the invariant
	}{
		{"cost", policies.Cost{D0: 1}, ""},
		{"cost D0 zero", policies.Cost{}, "1:"},
		{"cost D0 NaN", policies.Cost{D0: nan}, "1:"},
		{"cost D0 infinite", policies.Cost{D0: inf}, "1:"},
		{"cost D1 negative", policies.Cost{D0: 1, D1: -1}, "2:"},
		{"cost D2 NaN", policies.Cost{D0: 1, D2: nan}, "2:"},
		{"cost D3 infinite", policies.Cost{D0: 1, D3: inf}, "2:"},
		{"cost D4 negative", policies.Cost{D0: 1, D4: -1}, "2:"},
		{"cost kappa negative", policies.Cost{D0: 1, Kappa: -1}, "2:"},

		{"QoE", policies.QoE{D0: 1}, ""},
		{"QoE of the input alone", policies.QoE{D2: 1}, ""},
		{"QoE D0 negative", policies.QoE{D0: -1, D1: 2}, "1:"},
		{"QoE D1 NaN", policies.QoE{D1: nan}, "1:"},
		{"QoE D3 infinite", policies.QoE{D3: inf}, "1:"},
		{"QoE D4 negative", policies.QoE{D0: 1, D4: -1}, "1:"},
		{"QoE without a coefficient", policies.QoE{}, "2:"},

		{"capacity", policies.Capacity{KV: 1, Batch: 1, TransferRate: 2}, ""},
		{"capacity no KV", policies.Capacity{Batch: 1}, "1:"},
		{"capacity no batch", policies.Capacity{KV: 1}, "1:"},
		{"capacity rate", policies.Capacity{KV: 1, Batch: 1, TransferRate: -1}, "2:"},
		{"capacity rate NaN", policies.Capacity{KV: 1, Batch: 1, TransferRate: nan}, "2:"},

		{"load", policies.Load{Running: 1, Iteration: .1}, ""},
		{"load idle", policies.Load{}, ""},
		{"load running", policies.Load{Running: -1}, "1:"},
		{"load waiting", policies.Load{Waiting: -1}, "1:"},
		{"load held", policies.Load{Held: -1}, "1:"},
		{"load promised", policies.Load{Promised: -1}, "1:"},
		{"load iteration", policies.Load{Iteration: -1}, "2:"},
		{"load iteration NaN", policies.Load{Iteration: nan}, "2:"},

		{"replica", replica(func(*R) {}), ""},
		{"replica id", replica(func(r *R) { r.ID = "" }), "1:"},
		{"replica model", replica(func(r *R) { r.Model = "" }), "1:"},
		{"replica address", replica(func(r *R) { r.Address = "" }), "1:"},
		{"replica capacity", replica(func(r *R) { r.Capacity.KV = 0 }), "2:"},

		{"plan", plan(func(*P) {}), ""},
		{"plan one stage", policies.OneStagePlan("m", []policies.ReplicaID{"a"}), ""},
		{"plan model", plan(func(p *P) { p.Model = "" }), "1:"},
		{"plan no stage", plan(func(p *P) { p.Stages = nil }), "2:"},
		{"plan nine stages", plan(stages(9)), "2:"},
		{"plan eight stages", plan(stages(8)), ""},
		{"plan empty range between two", plan(func(p *P) {
			stages(3)(p)
			p.Stages[1].High, p.Stages[2].Low = 100, 100
		}), "3:"},
		{"plan start", plan(func(p *P) { p.Stages[0].Low = 1 }), "3:"},
		{"plan gap", plan(func(p *P) { p.Stages[1].Low = 101 }), "3:"},
		{"plan overlap", plan(func(p *P) { p.Stages[1].Low = 99 }), "3:"},
		{"plan empty range", plan(func(p *P) { p.Stages[0].High = 0 }), "3:"},
		{"plan closed end", plan(func(p *P) { p.Stages[1].High = 200 }), "3:"},
		{"plan empty stage", plan(func(p *P) { p.Stages[1].Replicas = nil }), "4:"},
		{"plan twice", plan(func(p *P) { p.Stages[1].Replicas[0] = "a" }), "5:"},

		{"flow", policies.NewFlow([]policies.Tokens{0, 1}), ""},
		{"flow no edge", policies.Flow{}, "1:"},
		{"flow start", policies.NewFlow([]policies.Tokens{1}), "1:"},
		{"flow edges equal", policies.NewFlow([]policies.Tokens{0, 5, 5}), "1:"},
		{"flow short column", policies.Flow{Edges: []policies.Tokens{0}}, "2:"},

		{"workload", workload(func(*W) {}), ""},
		{"workload no snapshot", workload(func(w *W) { w.Snapshot, w.QoE = nil, policies.QoE{} }), ""},
		{"workload a snapshot without QoE", workload(func(w *W) { w.QoE = policies.QoE{} }), "2:"},
		{"workload flow", workload(func(w *W) { w.Flow.Tokens[1] = nan }), "1:"},
		{"workload cost", workload(func(w *W) { w.Cost.D0 = 0 }), "1:"},
		{"workload capacity", workload(func(w *W) { w.Capacity.KV = 0 }), "1:"},
		{"workload short snapshot", workload(func(w *W) { w.Snapshot = w.Snapshot[:2] }), "2:"},
		{"workload snapshot", workload(func(w *W) { w.Snapshot[2].SumL = -1 }), "2:"},
		{"workload replicas", workload(func(w *W) { w.Replicas = 0 }), "3:"},
		{"workload transfer", workload(func(w *W) { w.Transfer.PerToken = inf }), "4:"},
		{"workload stages", workload(func(w *W) { w.Limits.Stages = -1 }), "4:"},
		{"workload iteration", workload(func(w *W) { w.Limits.Iteration = nan }), "4:"},
		{"workload pooling", workload(func(w *W) { w.Limits.Pooling = -1 }), "4:"},
		{"workload full utilisation", workload(func(w *W) { w.Limits.Utilisation = 1 }), ""},
		{"workload utilisation", workload(func(w *W) { w.Limits.Utilisation = 1.1 }), "4:"},
		{"workload utilisation NaN", workload(func(w *W) { w.Limits.Utilisation = nan }), "4:"},
	} {
		err := c.v.Validate()
		var v *policies.Violation
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v, want valid", c.name, err)
		case c.want != "" && !errors.As(err, &v):
			t.Errorf("%s: %v, want a violation of %s", c.name, err, c.want)
		case c.want != "" && (!strings.HasPrefix(v.Invariant, c.want) || v.Subject == ""):
			t.Errorf("%s: %v, want a violation of %s", c.name, err, c.want)
		}
	}
}

// TestScaleCost checks that an engine at half the speed takes twice as long in every part,
// and that the penalty of unequal lengths keeps its share.
func TestScaleCost(t *testing.T) {
	c := policies.Cost{D0: 1, D1: 2, D2: 3, D3: 4, D4: 5, Kappa: 6}
	if got, want := c.Scale(2), (policies.Cost{D0: 2, D1: 4, D2: 6, D3: 8, D4: 10, Kappa: 6}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestFlowColumns checks the order of the columns: partition.FlowCounter and its test index them.
func TestFlowColumns(t *testing.T) {
	f := policies.NewFlow([]policies.Tokens{0})
	for i, column := range [...][]float64{f.Arrivals, f.Tokens, f.Reads, f.Prefill, f.Prefill2, f.Weight, f.Crossings} {
		if &f.Columns()[i][0] != &column[0] {
			t.Errorf("column %d is another one", i)
		}
	}
}

// TestFlowRates breaks the third invariant of a flow in every column.
func TestFlowRates(t *testing.T) {
	f := policies.NewFlow([]policies.Tokens{0, 16})
	for i, column := range f.Columns() {
		for _, bad := range []float64{-1, nan, inf} {
			column[1] = bad
			if f.Validate() == nil {
				t.Errorf("column %d accepts %v", i, bad)
			}
		}
		column[1] = 0
	}
	if err := f.Validate(); err != nil {
		t.Error(err)
	}
}

func TestFlowPlus(t *testing.T) {
	edges := []policies.Tokens{0, 16}
	a, b := policies.NewFlow(edges), policies.NewFlow([]policies.Tokens{0, 16})
	a.Tokens[1], b.Tokens[1], a.Crossings[1], a.Seen, b.Seen = 2, 3, 7, 4, 5
	sum, ok := a.Plus(b)
	if !ok || sum.Tokens[1] != 5 || sum.Crossings[1] != 7 || sum.Seen != 9 || a.Tokens[1] != 2 {
		t.Errorf("sum %v %+v", ok, sum)
	}
	if same, ok := a.Plus(policies.NewFlow([]policies.Tokens{0, 17})); ok || same.Tokens[1] != 2 {
		t.Error("flows over other edges were added")
	}
	if _, ok := a.Plus(policies.NewFlow([]policies.Tokens{0})); ok {
		t.Error("flows over fewer edges were added")
	}
}

func TestEdges(t *testing.T) {
	for _, limit := range []policies.Tokens{0, 1, 15, 16, 17, 4096, 131072, 1 << 20, 1 << 62, policies.Unbounded} {
		for perOctave := -1; perOctave <= 40; perOctave++ {
			edges := policies.BucketEdges(limit, perOctave)
			if err := policies.NewFlow(edges).Validate(); err != nil {
				t.Fatalf("limit %v, %d an octave: %v", limit, perOctave, err)
			}
			if last := edges[len(edges)-1]; last > limit {
				t.Fatalf("limit %v, %d an octave: edge %v", limit, perOctave, last)
			}
		}
	}
	if !slices.Equal(policies.BucketEdges(4096, 0), policies.BucketEdges(4096, 1)) {
		t.Error("0 buckets an octave are not 1")
	}
	if n := len(policies.BucketEdges(131072, 8)); n != 106 {
		t.Errorf("128K tokens at 8 an octave have %d buckets", n)
	}
	if n := len(policies.BucketEdges(131072, 1)); n != 15 {
		t.Errorf("128K tokens at 1 an octave have %d buckets", n)
	}
}

// TestBucket compares the binary search with a scan, one token around every edge.
func TestBucket(t *testing.T) {
	edges := policies.BucketEdges(5000, 3)
	for _, e := range edges {
		for x := max(e-1, 0); x <= e+1; x++ {
			want := 0
			for b := range edges {
				if edges[b] <= x {
					want = b
				}
			}
			if got := policies.BucketOf(edges, x); got != want {
				t.Errorf("length %v is in bucket %d, want %d", x, got, want)
			}
		}
	}
	if got := policies.BucketOf(edges, policies.Unbounded); got != len(edges)-1 {
		t.Errorf("the longest length is in bucket %d", got)
	}
}

func TestPlanLookups(t *testing.T) {
	p := plan(func(*policies.Plan) {})
	for x, want := range map[policies.Tokens]int{-1: 0, 0: 0, 99: 0, 100: 1, 101: 1, policies.Unbounded: 1} {
		if got := p.StageOf(x); got != want {
			t.Errorf("length %v is in stage %d, want %d", x, got, want)
		}
	}
	for id, want := range map[policies.ReplicaID]int{"a": 0, "b": 0, "c": 1, "d": -1} {
		if got := p.StageOfReplica(id); got != want {
			t.Errorf("replica %s is in stage %d, want %d", id, got, want)
		}
	}
}

// TestReplicaEqual changes every field of a replica once.
func TestReplicaEqual(t *testing.T) {
	r := replica(func(*policies.Replica) {})
	if !r.Equal(r) {
		t.Error("a replica does not equal itself")
	}
	for i := range reflect.TypeFor[policies.Replica]().NumField() {
		o := r
		switch f := reflect.ValueOf(&o).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("other")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			o.Adapters = []string{"other"}
		case reflect.Struct:
			o.Capacity.KV++
		}
		if r.Equal(o) || o.Equal(r) {
			t.Errorf("a replica equals one with another %s", reflect.TypeFor[policies.Replica]().Field(i).Name)
		}
	}
}

func TestRequestLength(t *testing.T) {
	if got := (policies.Request{Input: 5, Output: 3}).Length(); got != 8 {
		t.Errorf("five tokens and three: %v", got)
	}
}

func TestTokensString(t *testing.T) {
	if s := policies.Tokens(12).String() + policies.Unbounded.String(); s != "12∞" {
		t.Errorf("got %q", s)
	}
}

// TestLengthRange writes lengths as all tables and plots do.
func TestLengthRange(t *testing.T) {
	for want, got := range map[string]string{
		"0": policies.Tokens(0).Grouped(), "999": policies.Tokens(999).Grouped(), "1,000": policies.Tokens(1000).Grouped(), "131,072": policies.Tokens(131072).Grouped(),
		"1,048,576": policies.Tokens(1 << 20).Grouped(), "∞": policies.Unbounded.Grouped(), "464–1,024": policies.LengthRange(464, 1024), "12,288–∞": policies.LengthRange(12288, policies.Unbounded),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
