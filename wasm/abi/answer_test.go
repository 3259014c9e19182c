package abi

import (
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// mustPut returns a frame.
func mustPut(t *testing.T, put func(arena []byte) (int, error)) []byte {
	t.Helper()
	arena := make([]byte, 1<<13)
	n, err := put(arena)
	testkit.NoError(t, err)
	return arena[:n]
}

func TestSelectAnswers(t *testing.T) {
	for _, c := range []struct {
		result uint64
		want   int
		err    error
	}{
		{EncodeSelectResult(0), 0, nil}, {EncodeSelectResult(2), 2, nil}, {EncodeSelectResult(-1), -1, nil}, {EncodeSelectResult(3), -1, ErrRule},
		{Result(OK, math.MaxUint32), -1, ErrRule}, {Result(Unsupported, 0), -1, Unsupported}, {Result(77, 0), -1, Status(77)},
	} {
		if i, err := DecodeSelectResult(c.result, 3); i != c.want || err != c.err {
			t.Errorf("%#x: %d, %v", c.result, i, err)
		}
	}
}

func TestQuoteAnswers(t *testing.T) {
	frame := mustPut(t, func(a []byte) (int, error) { return EncodeQuoteCall(a, Call{}, QuoteArgs{}) })
	take := func(load policies.Tokens, start policies.Micros) (policies.Bid, bool, error) {
		return DecodeQuoteResult(frame, EncodeQuoteResult(frame, policies.Bid{Load: load, Start: start}, true))
	}
	if b, ok, err := take(5, 7); b != (policies.Bid{Load: 5, Start: 7}) || !ok || err != nil {
		t.Errorf("%+v, %v, %v", b, ok, err)
	}
	if _, _, err := take(-1, 7); err != ErrRule {
		t.Errorf("negative load: %v", err)
	}
	if _, _, err := take(5, -1); err != ErrRule {
		t.Errorf("negative start: %v", err)
	}
	if _, ok, err := DecodeQuoteResult(frame, EncodeQuoteResult(frame, policies.Bid{}, false)); ok || err != nil {
		t.Errorf("no bid: %v, %v", ok, err)
	}
	for _, n := range []uint32{0, 8, 24, math.MaxUint32} {
		if _, _, err := DecodeQuoteResult(frame, Result(OK, n)); err != ErrOutput {
			t.Errorf("an output of %d bytes: %v", n, err)
		}
	}
	// A frame with less room than the present host provides.
	binary.LittleEndian.PutUint32(frame[60:], 8)
	if r := EncodeQuoteResult(frame, policies.Bid{}, true); r != Result(Short, 16) {
		t.Errorf("too little room: %#x", r)
	}
}

func TestRefineAnswers(t *testing.T) {
	b := policies.BoundaryView{Low: 10, Boundary: 15, High: 20}
	frame := mustPut(t, func(a []byte) (int, error) { return EncodeRefineCall(a, Call{}, b) })
	for at, want := range map[policies.Tokens]error{11: nil, 19: nil, 10: ErrRule, 20: ErrRule, -1: ErrRule, policies.Unbounded: ErrRule} {
		if got, err := DecodeRefineResult(frame, EncodeRefineResult(frame, at), b); err != want || err == nil && got != at || err != nil && got != 15 {
			t.Errorf("%d: %d, %v", at, got, err)
		}
	}
	if got, err := DecodeRefineResult(frame, Result(None, 0), b); got != 15 || err != nil {
		t.Errorf("none: %d, %v", got, err)
	}
}

func TestOutlierAnswers(t *testing.T) {
	frame := mustPut(t, func(a []byte) (int, error) { return EncodeOutlierCall(a, Call{}, 100, 50) })
	for x, want := range map[policies.Tokens]error{0: nil, 100: nil, 101: ErrRule, -1: ErrRule} {
		if got, err := DecodeOutlierResult(frame, EncodeOutlierResult(frame, x), 100); err != want || err == nil && got != x {
			t.Errorf("%d: %d, %v", x, got, err)
		}
	}
}

func TestPlaceAnswers(t *testing.T) {
	a := policies.Arrival{Own: policies.Candidate{ID: "own"}, Peers: []policies.Candidate{{ID: "a"}, {ID: "b"}}}
	for id, want := range map[policies.ReplicaID]policies.ReplicaID{"": "", "own": "", "a": "a", "b": "b"} {
		if got, err := DecodePlaceResult(EncodePlaceResult(a, id), a); got != want || err != nil {
			t.Errorf("%q: %q, %v", id, got, err)
		}
	}
	if _, err := DecodePlaceResult(EncodePlaceResult(a, "c"), a); err != Failed {
		t.Errorf("a replica that is not there: %v", err)
	}
	if _, err := DecodePlaceResult(Result(OK, 2), a); err != ErrRule {
		t.Errorf("a number that is not there: %v", err)
	}
	a.Hops = 1
	if _, err := DecodePlaceResult(Result(OK, 0), a); err != ErrRule {
		t.Errorf("forwarded twice: %v", err)
	}
}

func TestPartitionAnswers(t *testing.T) {
	w := policies.Workload{Flow: policies.NewFlow([]policies.Tokens{0}), Replicas: 8}
	frame := mustPut(t, func(a []byte) (int, error) { return EncodePartitionCall(a, Call{}, w) })
	good := policies.Partition{Cuts: []policies.Tokens{100, 200}, Counts: []int{4, 3, 1}, Cost: 1.5, OneStage: math.Inf(1), Iterations: []float64{0.01, 0.02, 0}, Exact: true}
	if got, err := DecodePartitionResult(frame, EncodePartitionResult(frame, good, true), w); err != nil || !reflect.DeepEqual(got, good) {
		t.Errorf("%+v, %v", got, err)
	}
	one := policies.Partition{Cuts: []policies.Tokens{}, Counts: []int{8}}
	if got, err := DecodePartitionResult(frame, EncodePartitionResult(frame, one, true), w); err != nil || !reflect.DeepEqual(got, one) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := DecodePartitionResult(frame, EncodePartitionResult(frame, good, false), w); !errors.Is(err, policies.ErrInfeasible) {
		t.Errorf("infeasible: %v", err)
	}
	for name, spoil := range map[string]func(*policies.Partition){
		"too few replicas":   func(p *policies.Partition) { p.Counts = []int{4, 2, 1} },
		"too many":           func(p *policies.Partition) { p.Counts = []int{4, 4, 1} },
		"an empty stage":     func(p *policies.Partition) { p.Counts = []int{5, 3, 0} },
		"negative count":     func(p *policies.Partition) { p.Counts = []int{9, 1, -2} },
		"overflowing counts": func(p *policies.Partition) { p.Counts = []int{math.MaxInt64, math.MaxInt64, 10} },
		"cuts that shrink":   func(p *policies.Partition) { p.Cuts = []policies.Tokens{200, 100} },
		"equal cuts":         func(p *policies.Partition) { p.Cuts = []policies.Tokens{100, 100} },
		"a cut at 0":         func(p *policies.Partition) { p.Cuts = []policies.Tokens{0, 100} },
		"an open cut":        func(p *policies.Partition) { p.Cuts = []policies.Tokens{100, policies.Unbounded} },
		"cost NaN":           func(p *policies.Partition) { p.Cost = math.NaN() },
		"cost infinite":      func(p *policies.Partition) { p.Cost = math.Inf(1) },
		"one stage NaN":      func(p *policies.Partition) { p.OneStage = math.NaN() },
		"iteration NaN":      func(p *policies.Partition) { p.Iterations = []float64{1, math.NaN(), 1} },
		"iteration negative": func(p *policies.Partition) { p.Iterations = []float64{1, -1, 1} },
	} {
		p := good
		spoil(&p)
		if _, err := DecodePartitionResult(frame, EncodePartitionResult(frame, p, true), w); err != ErrRule {
			t.Errorf("%s: %v", name, err)
		}
	}
	many := policies.Partition{}
	for i := range 9 {
		many.Counts = append(many.Counts, 1)
		if i > 0 {
			many.Cuts = append(many.Cuts, policies.Tokens(i))
		}
	}
	if r := EncodePartitionResult(frame, many, true); r != Result(Short, 32+9*24) {
		t.Errorf("nine stages in room for eight: %#x", r)
	}
	if r := EncodePartitionResult(frame, policies.Partition{Counts: []int{1, 1}}, true); r != Result(Failed, 0) {
		t.Errorf("slices that do not fit each other: %#x", r)
	}
	out := frame[binary.LittleEndian.Uint32(frame[56:]):]
	result := EncodePartitionResult(frame, good, true)
	for name, at := range map[string]int{"head": 0, "stages": 8, "stride": 12} {
		was := binary.LittleEndian.Uint32(out[at:])
		for _, v := range []uint32{0, 1, 1 << 16, math.MaxUint32} {
			binary.LittleEndian.PutUint32(out[at:], v)
			if _, err := DecodePartitionResult(frame, result, w); err == nil {
				t.Errorf("%s of %d is accepted", name, v)
			}
		}
		binary.LittleEndian.PutUint32(out[at:], was)
	}
}

func TestGuardAnswers(t *testing.T) {
	ch := Change{Next: policies.OneStagePlan("m", []policies.ReplicaID{"a"})}
	frame := mustPut(t, func(a []byte) (int, error) { return EncodeGuardCall(a, Call{}, ch) })
	want := Denial{7, 0, "too many changes"}
	if d, denied, err := DecodeGuardResult(frame, EncodeGuardResult(frame, want, true), ch); d != want || !denied || err != nil {
		t.Errorf("%+v, %v, %v", d, denied, err)
	}
	if _, denied, err := DecodeGuardResult(frame, EncodeGuardResult(frame, want, false), ch); denied || err != nil {
		t.Errorf("allowed: %v, %v", denied, err)
	}
	long := Denial{Stage: -1, Detail: string(make([]byte, 1000))}
	if d, _, err := DecodeGuardResult(frame, EncodeGuardResult(frame, long, true), ch); len(d.Detail) != MaxDetail || err != nil {
		t.Errorf("a long detail: %d bytes, %v", len(d.Detail), err)
	}
	for _, stage := range []int{-2, 1} {
		if _, _, err := DecodeGuardResult(frame, EncodeGuardResult(frame, Denial{Stage: stage}, true), ch); err != ErrRule {
			t.Errorf("stage %d: %v", stage, err)
		}
	}
	for _, r := range []uint64{Result(None, 0), Result(None, 8), Result(OK, 16), Result(None, 5000)} {
		if _, _, err := DecodeGuardResult(frame, r, ch); err == nil {
			t.Errorf("%#x is accepted", r)
		}
	}
}

func TestNamesAndStatuses(t *testing.T) {
	seen := map[string]bool{}
	for k := range NumKinds + 1 {
		if seen[k.String()] || (k.Export() == "") != (k == NumKinds) {
			t.Errorf("kind %d: %q, %q", k, k, k.Export())
		}
		seen[k.String()] = true
	}
	for s := OK; s <= Failed+1; s++ {
		if seen[s.Error()] {
			t.Errorf("status %d: %q", s, s.Error())
		}
		seen[s.Error()] = true
		if got, v := Unpack(Result(s, 9)); got != s || v != 9 {
			t.Errorf("status %d: unpacked %d, %d", s, got, v)
		}
	}
	if a, n := UnpackRegion(Region(3, 5)); a != 3 || n != 5 {
		t.Errorf("region %d, %d", a, n)
	}
}
