package resources_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// otherSets are what a Prover has proved before.
var otherSets = sync.OnceValues(func() (one, two resources.Set) {
	one, _ = resources.Build(fleet())
	two, _ = resources.Build(twoModels())
	return one, two
})

// prove returns the result of Prove, and compares with it a Prover that has proved
// other sets before and proves this one more than once.
func prove(t testing.TB, s resources.Set) error {
	t.Helper()
	p, want := new(resources.Prover), resources.Prove(s)
	one, two := otherSets()
	for i, set := range []resources.Set{one, s, two, s, s, one, two} {
		expect := error(nil)
		if slices.Contains([]int{1, 3, 4}, i) {
			expect = want
		}
		if got := p.Prove(set); fmt.Sprint(got) != fmt.Sprint(expect) {
			t.Fatalf("a Prover's proof %d says %v, and a first one %v", i, got, expect)
		}
	}
	return want
}

// TestProverAgrees lets one Prover prove random fleets that change as a whole, in part,
// to valid and to invalid ones. Its result for each must equal that of Prove. (100
// fleets; 300 with CASCADE_TEST_ALL.)
func TestProverAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	p := new(resources.Prover)
	proven, refused := 0, make(map[string]bool)
	views := []resources.View{fleet(), twoModels(), withModule(t), edgeFleet(), randomView(r)}
	sets := testkit.Size(100, 300)
	for n := range sets {
		i := r.IntN(len(views))
		if r.IntN(10) == 0 {
			views[i] = randomView(r)
		}
		s := build(t, step(r, views[i]))
		if r.IntN(3) == 0 {
			from := build(t, views[r.IntN(len(views))])
			if types := from.Types(); r.IntN(2) == 0 {
				s = s.WithTypes(from, types[r.IntN(len(types))])
			} else {
				s = swap(t, r, s, from)
			}
		}
		want := resources.Prove(s)
		for range 2 {
			if got := p.Prove(s); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("set %d: the Prover says %v, want %v", n, got, want)
			}
		}
		if want == nil {
			proven++
		} else {
			refused[want.Error()] = true
		}
	}
	t.Logf("%d proven, refused for %d reasons", proven, len(refused))
	if proven < sets/3 || len(refused) < sets/10 {
		t.Error("too few of either for a conclusion")
	}
}

// step changes a view as a rollout does: an epoch, a boundary, health, a weight or
// nothing.
func step(r *rand.Rand, v resources.View) resources.View {
	v.Plans, v.Endpoints = slices.Clone(v.Plans), slices.Clone(v.Endpoints)
	switch p, e := &v.Plans[r.IntN(len(v.Plans))], &v.Endpoints[r.IntN(len(v.Endpoints))]; r.IntN(5) {
	case 0:
		p.Epoch = policies.Epoch(r.IntN(4))
	case 1:
		if p.Stages = slices.Clone(p.Stages); len(p.Stages) > 1 && p.Stages[0].High > 2 {
			p.Stages[0].High--
			p.Stages[1].Low--
		}
	case 2:
		e.Health = resources.Health(r.IntN(3))
	case 3:
		e.Weight = 1 + r.Uint32N(3)
	}
	return v
}

// swap replaces one resource of a set: by one of another set, by one for other clients,
// by one with a false version, or by none.
func swap(t *testing.T, r *rand.Rand, s, from resources.Set) resources.Set {
	t.Helper()
	types := s.Types()
	typ := types[r.IntN(len(types))]
	all := s.All(typ)
	i := r.IntN(len(all))
	was := *all[i]
	switch other := from.Get(typ, was.Name); r.IntN(5) {
	case 0:
		if other != nil {
			was = *other
		}
	case 1:
		if other != nil {
			was.Body = other.Body // under the version of the first
		}
	case 2:
		was.Unlisted = !was.Unlisted
	case 3:
		was.Body = was.Body[:r.IntN(len(was.Body))]
		was.Version = resources.Version(was.Body)
	case 4:
		all = slices.Delete(all, i, i+1)
		i = -1
	}
	if i >= 0 {
		all[i] = &was
	}
	only := testkit.Must(resources.NewSet(all...))
	return s.WithTypes(only, typ)
}

// TestProverForgets checks that a Prover remembers only the resources of the last few
// proofs, and no secrets, however many sets it has proved.
func TestProverForgets(t *testing.T) {
	p, v := new(resources.Prover), edgeFleet()
	size := 0
	for n := range 100 {
		v.Plans[0].Epoch = policies.Epoch(n)
		s := build(t, v)
		testkit.NoError(t, p.Prove(s))
		size = -s.Len(resources.SecretType)
		for _, typ := range s.Types() {
			size += s.Len(typ)
		}
		if most := 2*size + 16*(s.Len(resources.RouteType)+s.Len(resources.RoutingType)); p.Known() > most {
			t.Fatalf("after %d sets of %d resources it remembers %d, want at most %d", n+1, size, p.Known(), most)
		}
	}
	for range 16 {
		testkit.NoError(t, p.Prove(build(t, v)))
	}
	if p.Known() != size && p.Known() != 2*size {
		t.Errorf("of one set of %d resources it remembers %d", size, p.Known())
	}
}
