package fleet

import (
	"errors"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/orders"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// TestPoliciesOrder checks that an order about slots is stored without a new epoch and
// without a change for proxies. A refused order changes nothing, and the next proposal
// keeps the stored slots.
func TestPoliciesOrder(t *testing.T) {
	model := Model{Name: "m", Context: 8192, Cost: policies.Cost{D0: 0.008, D1: 5e-5, D2: 6e-5, D3: 1e-9, D4: 6e-8, Kappa: 4}}
	s, err := NewState(Rules{Models: []Model{model}})
	if err != nil {
		t.Fatal(err)
	}
	now := start
	e := s.Step(now, Replicas{[]policies.Replica{{ID: "r0", Model: "m", Address: "127.0.0.1:1", Capacity: policies.Capacity{KV: 1000, Batch: 1}}}})
	if e.Propose == nil {
		t.Fatal("no first plan is proposed")
	}
	s.Step(now, Stored{e.Propose.Object})

	push := func(generation lifecycle.Generation) orders.ChangeSlots {
		return orders.ChangeSlots{Change: func(list []policyslots.Slot) ([]policyslots.Slot, error) {
			next, err := policyslots.Find(list, "place").Push(policyslots.Trial{
				Module: policyslots.Module{Generation: generation, SHA256: lifecycle.Digest{1}, Name: "p", Size: 1, Signature: []byte("s")}, Goal: lifecycle.ToStable,
			})
			return policyslots.Replace(list, next), err
		}}
	}
	e = s.Step(now, Ordered{push(1)})
	if e.Propose == nil || e.Publish != nil || len(e.Propose.Changes) != 0 || e.Propose.Object.Epoch != 1 || len(e.Propose.Object.Slots) != 1 {
		t.Fatalf("%+v", e.Propose)
	}
	if err := e.Propose.Object.Validate(); err != nil {
		t.Fatal(err)
	}
	// Another control plane wrote first, so the order is retried on top of its object.
	s.Step(now, NotStored{})
	other := s.object
	other.Slots, _ = push(5).Change(nil)
	s.Step(now, Stored{other})
	if err := s.CheckOrder(push(1)); !errors.Is(err, policyslots.ErrReplayed) {
		t.Fatal(err)
	}
	if e := s.Step(now, Ordered{push(1)}); e.Propose != nil {
		t.Fatal("an order that is not obeyed is proposed")
	}
	e = s.Step(now, Ordered{push(6)})
	if e.Propose == nil || e.Propose.Object.Slots[0].Stable.Generation != 6 || e.Propose.Object.Slots[0].Previous.Generation != 5 {
		t.Fatalf("%+v", e.Propose)
	}
	if e = s.Step(now, Stored{e.Propose.Object}); e.Publish != nil {
		t.Error("proxies are shown something because of a slot")
	}
	// Other orders keep the slots.
	e = s.Step(now, Ordered{orders.Pin{Model: "m"}})
	if e.Propose == nil || policyslots.Find(e.Propose.Object.Slots, "place").Floor != 6 {
		t.Fatalf("%+v", e.Propose)
	}
}
