package fleet

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestRemovalAtStart checks that a control plane which starts with a file that lacks more than half
// of the replicas of the stored plan applies no list before it is confirmed, and publishes nothing; a
// file that lacks half of them is applied.
func TestRemovalAtStart(t *testing.T) {
	stored := testState(t, PolicyDefault).object
	begin := func(list ...policies.Replica) (*State, Effects) {
		s := testkit.Must(NewState(testRules(PolicyDefault)))
		s.Step(start, Stored{stored})
		return s, s.Step(start, Replicas{list})
	}
	s, e := begin(testReplica("r0"))
	if h := s.held; h == nil || !h.AtStart || h.Text != "3 of the 4 replicas of m (r1, r2, r3)" || s.registry.Configured() || e.Propose != nil || e.Publish != nil {
		t.Fatalf("held: %+v, effects: %+v", h, e)
	}
	confirmed := stored
	confirmed.ConfirmedRemoval = s.held.Digest
	s.Step(start, Stored{confirmed})
	if s.held != nil || !s.registry.Configured() || len(s.registry.All()) != 1 {
		t.Errorf("confirmed: held %+v, replicas %v", s.held, s.registry.All())
	}
	if s, _ := begin(testReplica("r0"), testReplica("r1")); s.held != nil || !s.registry.Configured() {
		t.Errorf("half of them: held %+v", s.held)
	}
	// Another control plane has removed the replicas meanwhile, a few at a time.
	s, _ = begin(testReplica("r0"))
	smaller := stored
	smaller.Plans = []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r0"})}
	smaller.Plans[0].Epoch = stored.Epoch + 1
	if s.Step(start, Stored{smaller}); s.held != nil || len(s.registry.All()) != 1 {
		t.Errorf("removed by another control plane: held %+v", s.held)
	}
	// The mended file is applied at once.
	s, _ = begin(testReplica("r0"))
	s.Step(start, Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1"), testReplica("r2"), testReplica("r3")}})
	if s.held != nil || len(s.registry.All()) != 4 {
		t.Errorf("mended: held %+v", s.held)
	}
}
