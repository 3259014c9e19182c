package store

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// FuzzDecode checks that every object that is decoded and valid decodes to the same object after it
// was encoded.
func FuzzDecode(f *testing.F) {
	for _, o := range []Object{{
		Epoch: 3, Plans: []policies.Plan{{Model: "m", Epoch: 3, Stages: []policies.Stage{
			{Low: 0, High: 10, Replicas: []policies.ReplicaID{"a"}},
			{Low: 10, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}},
		}}}, Reasons: []Reason{{Model: "m", Text: "x"}},
	}, {
		Epoch: 2, Pins: []Pin{{FormerPlan: FormerPlan{Model: "m", Epoch: 2, Cuts: []policies.Tokens{10}, Counts: []int{1, 1}}}}, Holds: []Hold{{Model: "m", For: 1}},
		FormerPlans: []FormerPlan{{Model: "m", Epoch: 1, Cuts: []policies.Tokens{10}, Counts: []int{1, 2}}},
		Weights:     []Weight{{Replica: "a", Weight: 71}},
		Unready:     []policies.ReplicaID{"a"}, Stopping: []policies.ReplicaID{"b"}, Ratios: []Ratio{{Model: "m", Milli: 4000}},
		Slots: []policyslots.Slot{{Kind: "guard", Floor: 3, Stable: &policyslots.Module{Generation: 2, SHA256: lifecycle.Digest{1}, Name: "g", Size: 1, Signature: []byte("s")},
			Ended: []policyslots.Ended{{Generation: 3, Reason: "trapped"}}}},
		Reasons: []Reason{{Model: "m", Decision: "kept", Gain: 0.1, Predicted: 1, Observed: 2, By: "x", Times: 2}},
	}} {
		good, err := encode(o)
		testkit.NoError(f, err)
		f.Add(good)
	}
	f.Add([]byte(`{"drained":["b","a"],"pins":[{"model":"m","counts":[1],"at":"2026-01-02T03:04:05+02:00"}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := decode(body)
		if err != nil || o.Validate() != nil {
			return
		}
		once, err := encode(o)
		if err != nil {
			return // it cannot be stored: a year beyond 9999, for instance
		}
		o2, err := decode(once)
		testkit.NoError(t, err)
		twice, err := encode(o2)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("changed by encoding it again: %v\n%s\n%s", err, once, twice)
		}
	})
}

// FuzzRoot checks that no root makes a reader allocate more than the limits, and that a root that is
// read is read again as the same.
func FuzzRoot(f *testing.F) {
	f.Add([]byte(`{"format":2,"plan":{"stored":{"id":"0123456789abcdef","sha256":"` + sumOf(nil) + `","size":1048577,"pieces":2}},"state":{"inline":{}}}`))
	f.Add([]byte(`{"format":2,"plan":{"stored":{"id":"x","sha256":"x","size":1,"pieces":1}}}`))
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := decodeRoot(data)
		if err != nil {
			return
		}
		for name := range root.names() {
			if len(name) > 200 {
				t.Errorf("blob %q", name)
			}
		}
		again, err := json.Marshal(root)
		if err != nil {
			return // a year beyond 9999
		}
		if second, err := decodeRoot(again); err != nil || !second.Plan.equal(root.Plan) && root.Plan.Stored != nil {
			t.Errorf("%s: %v", again, err)
		}
	})
}

// FuzzExpandCounters: whatever is stored, there is no panic, and what was compressed comes back.
func FuzzExpandCounters(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = expandCounters(bytes.NewReader(data))
		stored, err := compressCounters(data)
		if err != nil {
			return
		}
		if got, err := expandCounters(bytes.NewReader(stored)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes come back as %d, %v", len(data), len(got), err)
		}
	})
}
