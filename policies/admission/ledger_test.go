package admission_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// TestLedgerBooks counts random requests beside the ledger: whoever begins and ends in which order, and
// beyond the tenants that are counted apart, its sums are those of the requests that are there.
func TestLedgerBooks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 14))
	tenants := map[string]admission.Tenant{"t1": {Weight: 5}, "t2": {Weight: 0}, "": {Weight: 3}}
	l := admission.Ledger{ByTenant: true, Tenants: tenants}
	type request struct {
		entry          admission.Entry
		demand, prompt policies.Tokens
		sequences      int
	}
	var running []request
	check := func(when string) {
		var demand, prompts policies.Tokens
		sequences := 0
		for _, q := range running {
			demand, prompts, sequences = demand+q.demand, prompts+q.prompt, sequences+q.sequences
		}
		byTenant, weights := l.Demand()
		want := 0
		for name := range byTenant {
			want += max(tenants[name].Weight, 1)
		}
		if w := l.Work(); w.Requests != sequences || w.Demand != demand || w.Waiting != prompts || weights != want {
			t.Fatalf("%s: %+v, weights of %d; want %d requests of %d tokens, %d waiting, weights of %d", when, w, weights, sequences, demand, prompts, want)
		}
	}
	most := 0
	for i := range 40_000 {
		switch n := len(running); {
		case n > 0 && r.IntN(3) == 0:
			at := r.IntN(n)
			l.End(&running[at].entry, 0, false)
			running = slices.Delete(running, at, at+1)
		case n > 0 && r.IntN(9) == 0:
			at := r.IntN(n)
			l.Begin(&running[at].entry)
			running[at].prompt = 0
		default:
			q := request{prompt: policies.Tokens(1 + r.IntN(50))}
			a := admission.Arrival{Tenant: fmt.Sprint("t", r.IntN(2*admission.MaxTenants)), Input: q.prompt, MaxOutput: policies.Tokens(1 + r.IntN(200)), HasKV: r.IntN(4) == 0}
			a.Sequences = r.IntN(4)
			q.sequences = max(a.Sequences, 1)
			q.demand = a.Input + policies.Tokens(q.sequences)*a.MaxOutput
			if r.IntN(2) == 0 {
				a.Cached = policies.Tokens(r.IntN(60)) // as an estimate, it may exceed the prompt
				q.prompt = max(a.Input-a.Cached, 0)
			}
			if a.HasKV {
				q.prompt = 0
			}
			var v admission.Verdict
			if q.entry, v = l.Admit(a); !v.Admit {
				t.Fatal("a ledger without an engine refuses")
			}
			running = append(running, q)
		}
		if i%500 == 0 {
			check(fmt.Sprint("step ", i))
			byTenant, _ := l.Demand()
			most = max(most, len(byTenant))
		}
	}
	if most < admission.MaxTenants || most > admission.MaxTenants+1 { // and ""
		t.Errorf("%d tenants were counted apart", most)
	}
	for i := range running {
		l.End(&running[i].entry, 0, false)
	}
	running = nil
	check("at the end")
}

// TestLedgerExpects checks what a request is expected to need: the limit, the mean of recent answers and
// one, and at least one token more than it has.
func TestLedgerExpects(t *testing.T) {
	l := admission.Ledger{}
	demand := func(a admission.Arrival) policies.Tokens {
		e, _ := l.Admit(a)
		d := l.Work().Demand
		l.End(&e, 0, false)
		return d
	}
	for _, c := range []struct {
		why  string
		a    admission.Arrival
		want policies.Tokens
	}{
		{"nothing is known", admission.Arrival{Input: 100}, 356},
		{"its limit", admission.Arrival{Input: 100, MaxOutput: 20}, 120},
		{"several sequences", admission.Arrival{Input: 100, MaxOutput: 20, Sequences: 4}, 180},
		{"several prompts", admission.Arrival{Input: 100, MaxOutput: 20, Prompts: 3}, 160},
		{"it has had more", admission.Arrival{Input: 100, Sent: 400, Admitted: true}, 501},
	} {
		if got := demand(c.a); got != c.want {
			t.Errorf("%s: demand %d, want %d", c.why, got, c.want)
		}
	}
	for range 200 {
		e, _ := l.Admit(admission.Arrival{Input: 1})
		l.End(&e, 50, true)
	}
	if got := demand(admission.Arrival{Input: 100}); got < 149 || got > 151 {
		t.Errorf("after answers of 50 tokens: demand %d, want 151 or a little less", got)
	}
	for range 200 {
		e, _ := l.Admit(admission.Arrival{Input: 1, Sequences: 4})
		l.End(&e, 200, true)
	}
	if w := l.Work(); w.Output < 48 || w.Output > 50 {
		t.Errorf("mean output %d", w.Output)
	}
}

// TestLedgerPredictsSequences checks that a request's prediction is that of all its sequences.
func TestLedgerPredictsSequences(t *testing.T) {
	l := admission.Ledger{Decider: admission.Decider{Cost: policies.Cost{D0: 0.1, D2: 0.01, D3: 0.001}, Capacity: 1000, Batch: 8}}
	for _, c := range []struct {
		a     admission.Arrival
		alone float64
	}{
		{admission.Arrival{Input: 100, MaxOutput: 10}, 12},
		{admission.Arrival{Input: 100, MaxOutput: 10, Sequences: 16}, 13},
		{admission.Arrival{Input: 100, MaxOutput: 10, Prompts: 4, Sequences: 16}, 5.5},
	} {
		if _, v := l.Admit(c.a); math.Abs(v.Alone-c.alone) > 1e-9 {
			t.Errorf("%+v takes %g s alone, want %g", c.a, v.Alone, c.alone)
		}
	}
}

// TestLedgerRefuses fills a replica until it refuses: what was admitted before is never refused, and what
// ends makes room.
func TestLedgerRefuses(t *testing.T) {
	l := admission.Ledger{Decider: admission.Decider{Cost: policies.Cost{D0: 0.1}, Capacity: 300}}
	ask := admission.Arrival{Input: 10, MaxOutput: 90}
	var entries []admission.Entry
	for {
		e, v := l.Admit(ask)
		if !v.Admit {
			if v.Retry < 1 {
				t.Errorf("refused for %d s", v.Retry)
			}
			break
		}
		if entries = append(entries, e); len(entries) > 200 {
			t.Fatal("nothing is refused")
		}
	}
	n := len(entries)
	again := ask
	again.Admitted = true
	e, v := l.Admit(again)
	if !v.Admit || l.Refused() != 1 || l.Work().Requests != n+1 {
		t.Errorf("%+v, %d refused, %+v", v, l.Refused(), l.Work())
	}
	l.End(&e, 0, false)
	for i := range entries[:n/2] {
		l.End(&entries[i], 90, true)
	}
	if _, v := l.Admit(ask); !v.Admit {
		t.Errorf("refused after half of the requests ended: %+v", v)
	}
}
