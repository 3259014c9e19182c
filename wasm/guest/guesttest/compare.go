package guesttest

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// rounds is the number of random calls of each kind.
const rounds = 200

// Compare makes an instance and a native policy decide the same random arguments, for
// every kind whose interface the native policy implements, and fails the test at the
// first difference.
func Compare(t testing.TB, g *host.Instance, native any) {
	t.Helper()
	r, got, want := hosttest.NewRandom(1), hosttest.Every(answers{t, g}), hosttest.Every(native)
	for range rounds {
		for k := range abi.NumKinds {
			if !want.Decides(k) {
				continue
			}
			if err := r.Compare(k, got, want); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// answers is an instance as a policy of every kind. A fault ends the test.
type answers struct {
	t testing.TB
	*host.Instance
}

func ask[Q, A any](a answers, k *abi.Codec[Q, A], q Q) A {
	a.t.Helper()
	answer, err := host.Ask(a.Instance, k, abi.Call{}, q)
	if err != nil {
		a.t.Fatal(err)
	}
	return answer
}

func (a answers) Partition(w policies.Workload) (policies.Partition, error) {
	p := ask(a, &abi.PartitionCodec, w)
	return p.Partition, p.Err
}

func (a answers) Quote(p policies.Occupancy, h policies.Migration) (policies.Bid, bool) {
	q := ask(a, &abi.QuoteCodec, abi.QuoteArgs{Occupancy: p, Migration: h})
	return q.Bid, q.OK
}

func (a answers) Guard(ch abi.Change) (abi.Denial, bool) {
	g := ask(a, &abi.GuardCodec, ch)
	return g.Denial, g.Denied
}

func (a answers) Refine(b policies.BoundaryView) policies.Tokens { return ask(a, &abi.RefineCodec, b) }
func (a answers) Select(bids []policies.Bid) int                 { return ask(a, &abi.SelectCodec, bids) }
func (a answers) Place(q policies.Arrival) policies.ReplicaID    { return ask(a, &abi.PlaceCodec, q) }
func (a answers) Excess(own, mean policies.Tokens) policies.Tokens {
	return ask(a, &abi.OutlierCodec, abi.Loads{Own: own, Mean: mean})
}
