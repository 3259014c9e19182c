package slothost

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// stays is a placer that keeps every request where it is.
func stays() []byte {
	return hosttest.Policy(hosttest.Function(abi.Place.Export(), nil, hosttest.Result(uint32(abi.None), 0))).Encode()
}

// BenchmarkPlace measures what a slot adds to a call for a place: "instance" calls an instance of the
// module, "slot" calls the same module through its slot, "native" and "native slot" do so with the
// native policy.
func BenchmarkPlace(b *testing.B) {
	peers := make([]policies.Candidate, 8)
	for i := range peers {
		peers[i] = policies.Candidate{ID: "replica", High: 4096}
	}
	arrival := policies.Arrival{Request: policies.Request{ID: "front-1/77", Input: 300}, Own: policies.Candidate{ID: "own"}, Peers: peers}
	run := func(name string, place func(policies.Arrival) policies.ReplicaID) {
		b.Run(name+"/one", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				place(arrival)
			}
		})
		b.Run(name+"/all", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					place(arrival)
				}
			})
		})
	}
	c := config(b)
	c.Kinds, c.Every, c.Logger, c.Tick = []abi.Kind{abi.Place}, 64, nil, 0
	for _, with := range []bool{false, true} {
		s, _ := running(b, c)
		if !with {
			run("native", natives.Placer.Place)
			run("native-slot", s.Placer().Place)
			continue
		}
		apply(b, s, specOf(abi.Place, stableOf(signedFor(b, 1, lifecycle.ToActive, stays(), abi.Place))))
		waitFor(b, "active", func() bool { return statusOf(s, abi.Place, 1).Phase == lifecycle.Active })
		run("slot", s.Placer().Place)
	}
	m := testkit.Must(host.Load(b.Context(), host.Config{Limits: c.Limits}, stays()))
	defer m.Close()
	i := testkit.Must(m.Instantiate())
	defer i.Close()
	b.Run("instance/one", func(b *testing.B) {
		b.ReportAllocs()
		for n := uint64(1); b.Loop(); n++ {
			if _, err := i.Place(abi.Call{ID: n, Seed: n}, arrival); err != nil {
				b.Fatal(err)
			}
		}
	})
}
