package place_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

type site = policies.Candidate

// fleet is a front of the short stage with a neighbour and two long replicas.
func fleet(edit func(*policies.Arrival)) policies.Arrival {
	const end = 1000
	a := policies.Arrival{
		Request: policies.Request{ID: "r", Input: 500},
		Own:     site{ID: "me", High: end, Waiting: 100},
		Peers: []site{
			{ID: "near", High: end, Waiting: 3000, Load: 5},
			{ID: "far", High: end, Waiting: 3000, Load: 4},
			{ID: "long1", Low: end, High: policies.Unbounded, Waiting: 20},
			{ID: "long2", Low: end, High: policies.Unbounded, Waiting: 10},
		},
	}
	edit(&a)
	return a
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*policies.Arrival)
		want policies.ReplicaID
	}{
		{"at home", func(*policies.Arrival) {}, ""},
		{"draining: least load among equals", func(a *policies.Arrival) { a.Own.Draining = true }, "far"},
		{"draining: least load, wherever it is listed", func(a *policies.Arrival) { a.Own.Draining, a.Peers[0].Load = true, 3 }, "near"},
		{"draining: the first among equals", func(a *policies.Arrival) { a.Own.Draining, a.Peers[0].Load = true, 4 }, "near"},
		{"just long enough", func(a *policies.Arrival) { a.Own.Low = 500 }, ""},
		{"draining: a longer stage when the own is empty", func(a *policies.Arrival) { a.Own.Draining, a.Peers = true, a.Peers[2:] }, "long2"},
		{"draining: never a shorter stage", func(a *policies.Arrival) { a.Own.Draining, a.Peers, a.Request.Input = true, a.Peers[:2], 2000 }, ""},
		{"draining: not to who drains", func(a *policies.Arrival) { a.Own.Draining, a.Peers[1].Draining = true, true }, "near"},
		{"draining: estimate is enough", func(a *policies.Arrival) { a.Own.Draining, a.Request.Estimated, a.Request.Input = true, true, 1000 }, "long2"},
		{"too long", func(a *policies.Arrival) { a.Request.Input = 1000 }, "long2"},
		{"just not too long", func(a *policies.Arrival) { a.Request.Input = 999 }, ""},
		{"too long by estimate only", func(a *policies.Arrival) { a.Request.Input, a.Request.Estimated = 1000, true }, ""},
		{"too long and no other peer", func(a *policies.Arrival) { a.Request.Input, a.Peers = 1000, a.Peers[:2] }, ""},
		{"too short", func(a *policies.Arrival) { a.Own.Low = 600 }, "far"},
		{"second hop", func(a *policies.Arrival) { a.Hops, a.Own.Draining = 1, true }, ""},
		{"prefix", func(a *policies.Arrival) { a.Peers[0].Prefix = 1024 }, "near"},
		{"prefix: not enough", func(a *policies.Arrival) { a.Peers[0].Prefix = 1023 }, ""},
		{"prefix: own counts", func(a *policies.Arrival) { a.Peers[0].Prefix, a.Own.Prefix = 1024, 1 }, ""},
		{"prefix: but a long queue", func(a *policies.Arrival) { a.Peers[0].Prefix, a.Peers[0].Waiting = 1024, 8193 }, ""},
		{"queue", func(a *policies.Arrival) { a.Own.Waiting = 8193 }, "far"},
		{"queue: at the bound", func(a *policies.Arrival) { a.Own.Waiting = 8192 }, ""},
		{"queue: half as long is short enough", func(a *policies.Arrival) { a.Own.Waiting, a.Peers[0].Waiting, a.Peers[1].Waiting = 8194, 5000, 4097 }, "far"},
		{"queue: neighbours no better", func(a *policies.Arrival) {
			a.Own.Waiting, a.Peers = 8193, a.Peers[:2]
			a.Peers[0].Waiting, a.Peers[1].Waiting = 5000, 5000
		}, ""},
		{"queue: spill", func(a *policies.Arrival) { a.Own.Waiting = 8193; a.Peers[0].Waiting, a.Peers[1].Waiting = 5000, 5000 }, "long2"},
		{"queue: cached tokens count", func(a *policies.Arrival) { a.Own.Waiting, a.Peers[0].Prefix = 9000, 100 }, "near"},
		{"alone", func(a *policies.Arrival) { a.Own.Draining, a.Own.Waiting, a.Peers = true, 9000, nil }, ""},
		{"own replica in the list", func(a *policies.Arrival) { a.Own.Draining, a.Peers[0].ID, a.Peers[0].Waiting = true, "me", 0 }, "far"},
	} {
		if got := (place.Policy{}).Place(fleet(c.edit)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	never := place.Policy{Prefix: policies.Unbounded}
	if got := never.Place(fleet(func(a *policies.Arrival) { a.Own.Prefix, a.Peers[0].Prefix = 7, 1<<40 })); got != "" {
		t.Errorf("prefix switched off: %q", got)
	}
}
