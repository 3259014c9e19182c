package resources

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// TestSlot checks that equal slots have equal bytes, that only nodes that subscribe to
// them get them, and that a slot that hosts could not read is not rendered.
func TestSlot(t *testing.T) {
	s := policyslots.Slot{Kind: "place"}
	s, err := s.Push(policyslots.Trial{Module: policyslots.Module{Generation: 1, SHA256: lifecycle.Digest{1}, Name: "m", Size: 4, Signature: []byte("signed")}, Goal: lifecycle.ToStable})
	testkit.NoError(t, err)
	code := func(lifecycle.Digest) []byte { return []byte("code") }
	a, err := RenderPolicySlot(s.Spec(code))
	testkit.NoError(t, err)
	b, err := RenderPolicySlot(s.Spec(code))
	if err != nil || a.Version != b.Version || !a.Unlisted || a.Name != "cascade.policy.place.v1" || a.Type != ExtensionType {
		t.Fatalf("%+v, %+v, %v", a, b, err)
	}
	if _, err := RenderPolicySlot(lifecycle.SlotSpec{Kind: "nonsense"}); err == nil {
		t.Error("a slot of no kind is rendered")
	}
	set, err := NewSet(&Resource{Type: ExtensionType, Name: "x", Version: "1"}, &Resource{Type: RouteType, Name: "r", Version: "1"})
	testkit.NoError(t, err)
	more := set.WithResources(a)
	if set.Len(ExtensionType) != 1 || more.Len(ExtensionType) != 2 || more.Len(RouteType) != 1 || more.Get(ExtensionType, a.Name) != a {
		t.Error("Plus adds elsewhere, or changes the set")
	}
	if got := (Set{}).WithResources(a); got.Len(ExtensionType) != 1 {
		t.Error("nothing is added to an empty set")
	}
}
