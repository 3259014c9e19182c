package place_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// TestPrefill checks each reason for which a prompt is computed at the own replica, and the
// choice among prefill replicas.
func TestPrefill(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*policies.Arrival)
		want policies.ReplicaID
	}{
		{"the shortest queue", func(*policies.Arrival) {}, "p1"},
		{"the shortest queue, wherever it is listed", func(a *policies.Arrival) { a.Peers[1].Waiting = 99 }, "p2"},
		{"the least load among equal queues", func(a *policies.Arrival) { a.Peers[1].Waiting, a.Peers[1].Load = 100, 6 }, "p2"},
		{"the first among equals", func(a *policies.Arrival) { a.Peers[1] = a.Peers[0]; a.Peers[1].ID = "p2" }, "p1"},
		{"short", func(a *policies.Arrival) { a.Request.Input = 1023 }, ""},
		{"just long enough", func(a *policies.Arrival) { a.Request.Input = 1024 }, "p1"},
		{"cached here", func(a *policies.Arrival) { a.Request.Cached = 977 }, ""},
		{"cached here, but not enough", func(a *policies.Arrival) { a.Request.Cached = 976 }, "p1"},
		{"long queues", func(a *policies.Arrival) { a.Peers[0].Waiting, a.Peers[1].Waiting = 8243, 9000 }, ""},
		{"queues at the bound", func(a *policies.Arrival) { a.Peers[0].Waiting, a.Peers[1].Waiting = 8242, 9000 }, "p1"},
		{"a long queue here, too", func(a *policies.Arrival) {
			a.Peers[0].Waiting, a.Peers[1].Waiting, a.Own.Waiting = 9000, 9001, 808
		}, "p1"},
		{"not to who drains", func(a *policies.Arrival) { a.Peers[0].Draining = true }, "p2"},
		{"the own replica drains", func(a *policies.Arrival) { a.Own.Draining = true }, ""},
		{"a queue as long as the prompt", func(a *policies.Arrival) {
			a.Request.Input, a.Peers[0].Waiting, a.Peers[1].Waiting = 20_000, 20_050, 20_051
		}, "p1"},
		{"a queue longer than the prompt", func(a *policies.Arrival) {
			a.Request.Input, a.Peers[0].Waiting, a.Peers[1].Waiting = 20_000, 20_051, 20_051
		}, ""},
		{"meant for the second", func(a *policies.Arrival) { a.Peers[0].High, a.Peers[1].Low = 2000, 2000 }, "p2"},
		{"meant for the second, to the last token", func(a *policies.Arrival) { a.Peers[0].Low, a.Peers[1].High = 2001, 2001 }, "p2"},
		{"by what is not cached", func(a *policies.Arrival) { a.Peers[0].High, a.Peers[1].Low, a.Request.Cached = 2000, 2000, 1 }, "p1"},
		{"its queue and that of longer prompts, at the bound", func(a *policies.Arrival) {
			a.Peers[0].Low, a.Peers[1].High, a.Peers[1].Waiting = 2001, 2001, 100+4096
		}, "p2"},
		{"its queue and that of longer prompts, beyond the bound", func(a *policies.Arrival) {
			a.Peers[0].Low, a.Peers[1].High, a.Peers[1].Waiting = 2001, 2001, 100+4097
		}, "p1"},
		{"its queue and that of shorter prompts", func(a *policies.Arrival) {
			a.Peers[0].High, a.Peers[1].Low, a.Peers[0].Waiting, a.Peers[1].Waiting = 2000, 2000, 1, 8000
		}, "p2"},
		{"its queue and an idle replica for shorter prompts, at the bound", func(a *policies.Arrival) {
			a.Peers[0].High, a.Peers[1].Low, a.Peers[0].Waiting, a.Peers[1].Waiting = 2000, 2000, 0, 4096
		}, "p2"},
		{"its queue and an idle replica for shorter prompts, beyond the bound", func(a *policies.Arrival) {
			a.Peers[0].High, a.Peers[1].Low, a.Peers[0].Waiting, a.Peers[1].Waiting = 2000, 2000, 0, 4097
		}, "p1"},
		{"its range's replica drains, and that of longer prompts has a queue", func(a *policies.Arrival) { a.Peers[0].Low, a.Peers[1].High, a.Peers[1].Draining = 2001, 2001, true }, "p1"},
		{"its range's replica drains, and that of shorter prompts has a queue", func(a *policies.Arrival) { a.Peers[0].High, a.Peers[1].Low, a.Peers[1].Draining = 2000, 2000, true }, ""},
		{"its range's queue is too long for any prompt", func(a *policies.Arrival) {
			a.Peers[0].Low, a.Peers[1].High, a.Peers[0].Waiting, a.Peers[1].Waiting = 2001, 2001, 8242, 8243
		}, "p1"},
		{"second hop", func(a *policies.Arrival) { a.Hops = 1 }, ""},
		{"none", func(a *policies.Arrival) { a.Peers = nil }, ""},
	} {
		a := policies.Arrival{
			Request: policies.Request{ID: "r", Input: 2000}, Own: site{ID: "me", High: policies.Unbounded, Waiting: 50},
			Peers: []site{{ID: "p1", High: policies.Unbounded, Waiting: 100, Load: 7}, {ID: "p2", High: policies.Unbounded, Waiting: 200, Load: 7}},
		}
		c.edit(&a)
		if got := (place.Prefill{}).Place(a); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
