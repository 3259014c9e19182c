//go:build !wasip1

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestModule compares the module with the same source compiled natively.
func TestModule(t *testing.T) {
	m := guesttest.Load(t, guesttest.Build(t, "."), host.Config{})
	guesttest.Compare(t, guesttest.Start(t, m), even{})
}

func TestEven(t *testing.T) {
	same := func(n int, length policies.Tokens) []policies.Sequence {
		list := make([]policies.Sequence, n)
		for i := range list {
			list[i] = policies.Sequence{Input: 1, Length: length}
		}
		return list
	}
	crowd := policies.BoundaryView{Boundary: 1000, High: 9000, Peers: 1, Successors: 1, QoE: policies.QoE{D0: 0.01, D1: 0.001}, Local: same(99, 600), Next: append(same(60, 1100), same(60, 3000)...)}
	for _, c := range []struct {
		name string
		b    policies.BoundaryView
		want policies.Tokens
	}{
		{"not so far that many join many", crowd, 1062},
		{"too few to say anything", policies.BoundaryView{Boundary: 1000, High: 9000, Peers: 1, Successors: 1, Local: same(7, 1)}, 1000},
		{"half the way down", policies.BoundaryView{Boundary: 1000, High: 9000, Peers: 1, Successors: 1, Local: same(9, 500)}, 750},
		{"not for a twentieth", policies.BoundaryView{Boundary: 1000, High: 9000, Peers: 1, Successors: 1, Local: same(9, 920)}, 1000},
		{"half the way up", policies.BoundaryView{Boundary: 1000, High: 9000, Peers: 1, Successors: 1, Next: same(9, 2000)}, 1500},
		{"never out of the range", policies.BoundaryView{Boundary: 1000, High: 1100, Peers: 1, Successors: 1, Next: same(9, 2000)}, 1099},
		{"own requests stand for the stage", policies.BoundaryView{Boundary: 1000, High: 9000, Peers: 10, Successors: 10, Local: same(8, 500), Next: same(9, 2000)}, 750},
	} {
		if got := (even{}).Refine(c.b); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRun keeps the example from rotting: the boundary comes to rest.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	run(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 6 || rests(lines[0]) || !rests(lines[5]) {
		t.Errorf("it does not come to rest:\n%s", &out)
	}
}

// rests reports whether a line's two lengths are equal.
func rests(line string) bool {
	_, values, _ := strings.Cut(line, "boundary ")
	at, next, _ := strings.Cut(values, ", proposed ")
	return at == next
}
