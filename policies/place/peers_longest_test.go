package place_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// TestLongestPrefix finds the peer of any stage that holds most of a prompt, unless it is gone.
func TestLongestPrefix(t *testing.T) {
	b := largeFleet(50, &lastArrival{})
	want := func(id policies.ReplicaID, held policies.Tokens, steps []prefix.Step) {
		t.Helper()
		to, got := b.LongestPrefix(steps)
		if to.Replica != id || got != held || (to.Address == "") != (id == "") {
			t.Errorf("%+v, %d; want %s, %d", to, got, id, held)
		}
	}
	want("", 0, stepsOf(4096))
	b.SetPeerPrefixes("a7", holding(1024))
	b.SetPeerPrefixes("b9", holding(2048))
	b.SetPeerPrefixes("b3", holding(0))
	want("b9", 2048, stepsOf(4096))
	want("", 0, nil)
	b.SetPeerLoad(0, "b9", place.PeerLoad{Draining: true})
	want("b9", 2048, stepsOf(4096))
	b.MarkGone("b9")
	want("a7", 1024, stepsOf(4096))
	b.SetPeerPrefixes("b3", holding(4096))
	want("b3", 1536, stepsOf(1600))
}
