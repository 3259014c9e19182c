//go:build !wasip1

package main

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/policytest"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/guest/guesttest"
	"github.com/cascadeinfer/cascade/wasm/host"
)

// TestModule compares the module with the same source compiled natively, as it is
// and configured.
func TestModule(t *testing.T) {
	m := guesttest.Load(t, guesttest.Build(t, "."), host.Config{})
	guesttest.Compare(t, guesttest.Start(t, m), &nvlink{node: 8, slower: 10})
	i := guesttest.Start(t, m)
	if err := i.Configure(abi.Call{}, []byte("node 2\nslower 100")); err != nil {
		t.Fatal(err)
	}
	guesttest.Compare(t, i, &nvlink{node: 2, slower: 100})
	if _, err := i.Partition(abi.Call{}, traffic()); err != nil {
		t.Fatal(err)
	}
	t.Logf("the example's traffic takes %d ticks of %d", i.Fuel(), m.Limit(abi.Partition).Fuel)
}

func TestContract(t *testing.T) {
	policytest.TestPartitioner(t, &nvlink{node: 2, slower: 10})
}

// TestNearIsBetter says that what is proposed is never worse than the blind
// partition, and in the example another one.
func TestNearIsBetter(t *testing.T) {
	w := traffic()
	blind, err := partition.Exact{}.Partition(w)
	if err != nil {
		t.Fatal(err)
	}
	p := &nvlink{node: 2, slower: 10}
	near, err := p.Partition(w)
	if err != nil {
		t.Fatal(err)
	}
	if gain := (blind.Cost + p.lost(w, blind)) - (near.Cost + p.lost(w, near)); gain <= 0 {
		t.Errorf("blind is %v, %v, near %v, %v: %v less", blind.Counts, blind.Cuts, near.Counts, near.Cuts, gain)
	}
}

// TestLocal counts replicas by hand.
func TestLocal(t *testing.T) {
	for _, c := range []struct {
		machines, first, from, to int
		want                      float64
	}{
		{1, 0, 4, 4, 1}, {2, 0, 4, 4, 1}, {2, 0, 4, 1, 0.5}, {4, 0, 8, 1, 0.25}, {4, 3, 2, 2, 0}, {4, 2, 4, 3, 0.75}, {16, 0, 1, 15, 0}, {16, 0, 1, 16, 1},
	} {
		near := 0
		for a := c.first; a < c.first+c.from; a++ {
			there := false
			for b := c.first + c.from; b < c.first+c.from+c.to; b++ {
				there = there || a%c.machines == b%c.machines
			}
			if there {
				near++
			}
		}
		oracle := float64(near) / float64(c.from)
		if got := local(c.machines, c.first, c.from, c.to); math.Abs(got-c.want) > 1e-12 || got != oracle {
			t.Errorf("%+v: %v, counted %v", c, got, oracle)
		}
	}
}

// TestRun keeps the example from rotting.
func TestRun(t *testing.T) {
	var out bytes.Buffer
	if err := run(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Count(got, "replicas [") != 2 {
		t.Errorf("two partitions are missing:\n%s", got)
	}
}
