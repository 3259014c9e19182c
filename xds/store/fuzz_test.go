package store

import (
	"bytes"
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// FuzzDecode checks that every object that is decoded is valid, and decodes to the same
// object after it was encoded.
func FuzzDecode(f *testing.F) {
	good, err := Encode(Object{Epoch: 3, Plans: []policies.Plan{
		{Model: "m", Epoch: 3, Stages: []policies.Stage{
			{Low: 0, High: 10, Replicas: []policies.ReplicaID{"a"}},
			{Low: 10, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}},
		}},
	}, Reasons: []Reason{{Model: "m", Text: "x"}}, Lease: Lease{Holder: "h"}}, 9)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	full, err := Encode(Object{
		Epoch: 2, Pins: []Pin{{FormerPlan: FormerPlan{Model: "m", Epoch: 2, Cuts: []policies.Tokens{10}, Counts: []int{1, 1}}}}, Holds: []Hold{{Model: "m", For: 1}},
		FormerPlans: []FormerPlan{{Model: "m", Epoch: 1, Cuts: []policies.Tokens{10}, Counts: []int{1, 2}}},
		Refused:     []Refusal{{Type: "t", Name: "n", Version: "v"}}, Weights: []Weight{{Replica: "a", Weight: 71}},
		Unready: []policies.ReplicaID{"a"}, Stopping: []policies.ReplicaID{"b"}, Ratios: []Ratio{{Model: "m", Milli: 4000}},
		Slots: []policyslots.Slot{{Kind: "guard", Floor: 3, Stable: &policyslots.Module{Generation: 2, SHA256: lifecycle.Digest{1}, Name: "g", Size: 1, Signature: []byte("s")},
			Ended: []policyslots.Ended{{Generation: 3, Reason: "trapped"}}}},
		Reasons: []Reason{{Model: "m", Decision: "kept", Gain: 0.1, Predicted: 1, Observed: 2, By: "x", Times: 2}},
	}, 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(full)
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":1,"drained":["b","a"]}`))
	f.Add([]byte(`{"format":1,"lease":{"holder":"a","expires":"2026-01-02T03:04:05+02:00"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, revision, err := Decode(body)
		if err != nil {
			return
		}
		if err := o.Validate(); err != nil {
			t.Fatal(err)
		}
		once, err := Encode(o, revision)
		if err != nil {
			return // it cannot be stored: a year beyond 9999, for instance
		}
		o2, revision2, err := Decode(once)
		if err != nil || revision2 != revision {
			t.Fatalf("revision %d, then %d: %v", revision, revision2, err)
		}
		twice, err := Encode(o2, revision)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("changed by encoding it again: %v\n%s\n%s", err, once, twice)
		}
	})
}
