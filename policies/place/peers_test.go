package place_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
)

// peersOf returns the load view of replica a in a fleet with stages [0,1000) of a, b, c; [1000,4000)
// of d, e; and the rest of f.
func peersOf(t testing.TB) *place.Peers {
	return fleetOf(t, peers("a", "b", "c", "d", "e", "f"))
}

// fleetOf returns that load view for replicas of these names.
func fleetOf(t testing.TB, replicas []policies.Replica) *place.Peers {
	b := place.NewPeers(place.PeersConfig{Self: "a", Placer: place.Policy{Queue: 100}})
	plan := fleetPlan()
	testkit.NoError(t, plan.Validate())
	b.SetView(plan, replicas)
	return b
}

func fleetPlan() policies.Plan {
	return policies.Plan{Model: "m", Stages: []policies.Stage{
		{Low: 0, High: 1000, Replicas: []policies.ReplicaID{"a", "b", "c"}},
		{Low: 1000, High: 4000, Replicas: []policies.ReplicaID{"d", "e"}},
		{Low: 4000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"f"}},
	}}
}

func peers(ids ...policies.ReplicaID) []policies.Replica {
	var out []policies.Replica
	for _, id := range ids {
		out = append(out, policies.Replica{ID: id, Model: "m", Address: string(id) + ":80", Peer: string(id) + ":81"})
	}
	return out
}

func at(id policies.ReplicaID) policies.Target {
	if id == "" {
		return policies.Target{}
	}
	return policies.Target{Replica: id, Address: string(id) + ":81"}
}

func prompt(n policies.Tokens) policies.Request { return policies.Request{Input: n} }

func TestPlaceAtPeers(t *testing.T) {
	b := peersOf(t)
	want := func(what string, r policies.Request, id policies.ReplicaID) {
		t.Helper()
		if got := b.Place(0, r, nil); got != at(id) {
			t.Errorf("%s: at %q, want %q", what, got.Replica, id)
		}
	}
	want("short", prompt(10), "")
	// No load is known yet, but the request must not start here.
	if got := b.Place(0, prompt(2000), nil).Replica; got != "d" && got != "e" {
		t.Errorf("long: at %q", got)
	}
	b.SetPeerLoad(0, "d", place.PeerLoad{Waiting: 500})
	b.SetPeerLoad(0, "e", place.PeerLoad{Waiting: 100})
	b.SetPeerLoad(0, "b", place.PeerLoad{Waiting: 10, Total: 10})
	b.SetPeerLoad(0, "c", place.PeerLoad{Waiting: 10, Total: 5})
	want("long", prompt(2000), "e")
	want("long, counted", prompt(2000), "d") // e has 2,100 tokens waiting now
	want("an estimate is left to the proxy", policies.Request{Input: 2000, Estimated: true}, "")
	want("fixed, and may grow", policies.Request{Input: 10, MaxOutput: 5000, Features: policies.Structured}, "f")
	b.SetOwnLoad(place.PeerLoad{})
	want("movable, and may grow", policies.Request{Input: 10, MaxOutput: 5000}, "")
	// This replica has a long queue.
	b.SetOwnLoad(place.PeerLoad{Waiting: 1000})
	want("queue", prompt(500), "c")
	want("queue, counted", prompt(500), "b")
	want("all queues are long now", prompt(500), "")
	// A load that is too old does not count.
	b.SetPeerLoad(0, "b", place.PeerLoad{})
	if got := b.Place(3*policies.Second+1, prompt(5), nil); got != at("") {
		t.Errorf("stale: at %q", got.Replica)
	}
	// A draining front end sends all requests away: to a replica of its stage, else to a longer
	// stage.
	b.SetOwnLoad(place.PeerLoad{Draining: true})
	b.SetPeerLoad(0, "b", place.PeerLoad{Draining: true})
	b.SetPeerLoad(0, "c", place.PeerLoad{})
	want("draining", prompt(5), "c")
	b.MarkGone("c")
	b.SetPeerLoad(0, "e", place.PeerLoad{})
	want("draining, no replica in the stage", prompt(5), "e")
	// No replica is available.
	b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"a"}), nil)
	want("alone", prompt(5), "")
}

// TestPlaceCountsPrompts checks that each prompt of a list counts where it was placed.
func TestPlaceCountsPrompts(t *testing.T) {
	b := peersOf(t)
	list := policies.Request{Input: 50, Prompts: 20}
	for i, want := range []policies.ReplicaID{"", "b", "c", ""} { // each one's queue is long after the list
		if i == 0 {
			b.SetPeerLoad(0, "b", place.PeerLoad{Waiting: 10})
			b.SetPeerLoad(0, "c", place.PeerLoad{Waiting: 20})
		}
		if got := b.Place(0, list, nil); got != at(want) {
			t.Errorf("list %d is placed at %q, want %q", i, got.Replica, want)
		}
	}
}

// placerFunc is a function as a Placer.
type placerFunc func(policies.Arrival) policies.ReplicaID

func (f placerFunc) Place(a policies.Arrival) policies.ReplicaID { return f(a) }

// TestPlaceOffersShorter checks that the Placer may choose a replica of the next shorter stage for a request
// that can move from there, and none of the stages before.
func TestPlaceOffersShorter(t *testing.T) {
	var offered []string
	b := place.NewPeers(place.PeersConfig{Self: "f", Placer: placerFunc(func(a policies.Arrival) policies.ReplicaID {
		offered = nil
		for _, c := range a.Peers {
			offered = append(offered, fmt.Sprintf("%s<%v", c.ID, c.High))
		}
		slices.Sort(offered)
		return ""
	})})
	b.SetView(fleetPlan(), peers("a", "b", "c", "d", "e", "f"))
	for _, id := range []policies.ReplicaID{"a", "b", "c", "d", "e"} {
		b.SetPeerLoad(0, id, place.PeerLoad{})
	}
	for _, c := range []struct {
		r    policies.Request
		want []string
	}{
		{prompt(5000), []string{"d<4000", "e<4000"}},
		{prompt(2000), []string{"a<1000", "b<1000", "c<1000", "d<4000", "e<4000"}},
		{policies.Request{Input: 5000, Features: policies.Structured}, nil},
	} {
		if b.Place(0, c.r, nil); !slices.Equal(offered, c.want) {
			t.Errorf("%d tokens: offered %v, want %v", c.r.Input, offered, c.want)
		}
	}
}

func TestPlaceWithoutPlan(t *testing.T) {
	b := place.NewPeers(place.PeersConfig{Self: "a", Placer: place.Policy{}})
	if got := b.Place(0, prompt(5), nil); got != at("") {
		t.Errorf("at %q", got.Replica)
	}
	if _, ok := b.Rescue(0, prompt(5), []policies.ReplicaID{"a"}); ok {
		t.Error("rescued without a replica")
	}
}

func TestOpen(t *testing.T) {
	b := peersOf(t)
	drained := peers("a", "b", "c", "d")
	drained[1].Draining = true
	drained[3].Peer = ""
	b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"a", "b", "c", "d"}), drained)
	for id, open := range map[policies.ReplicaID]bool{"a": false, "b": false, "c": true, "d": false, "f": false} {
		if b.Available(0, id) != open {
			t.Errorf("%s: open is %v", id, !open)
		}
	}
	b.SetPeerLoad(0, "c", place.PeerLoad{Draining: true})
	if b.Available(0, "c") || !b.Available(place.MaxAge+1, "c") {
		t.Error("c says that it drains, and for how long that counts")
	}
	b.MarkGone("c")
	if b.Available(0, "c") || b.CountFresh(0) != 0 {
		t.Error("c is gone")
	}
	b.MarkBack("c")
	b.MarkBack("x") // an unknown replica
	if !b.Available(0, "c") || b.CountFresh(0) != 0 {
		t.Error("c is there again, and nothing is known of its load")
	}
	b.MarkGone("c")
	b.SetPeerLoad(0, "c", place.PeerLoad{})
	if !b.Available(0, "c") || b.CountFresh(0) != 1 {
		t.Error("c is back")
	}
	b.SetPeerLoad(0, "x", place.PeerLoad{}) // an unknown replica
	if b.CountFresh(0) != 1 {
		t.Error("a stranger counts")
	}
}

// TestRescueLeavesHost checks that a stream whose engine was lost continues on another host, if one has a replica of
// the stage: the engines of a host that dies are lost one after the other, and a stream survives one loss.
func TestRescueLeavesHost(t *testing.T) {
	b, replicas := peersOf(t), peers("a", "b", "c", "d", "e")
	for i := range replicas {
		replicas[i].Host = []string{"x", "x", "x", "y", "y"}[i]
	}
	b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"a", "b", "c", "d", "e"}), replicas)
	b.SetOwnLoad(place.PeerLoad{Total: 900})
	for id, load := range map[policies.ReplicaID]policies.Tokens{"b": 0, "c": 100, "d": 500, "e": 600} {
		b.SetPeerLoad(0, id, place.PeerLoad{Total: load})
	}
	var tried []policies.ReplicaID
	for _, want := range []policies.ReplicaID{"b", "d", "c", "e", "a"} {
		got, ok := b.Rescue(0, prompt(2000), tried)
		if !ok || cmp.Or(got.Replica, "a") != want {
			t.Errorf("after %v: %q, %v; want %q", tried, got.Replica, ok, want)
		}
		tried = append(tried, want)
	}
	// So does one whose engine was that of this replica, and one that this replica's host could continue.
	for _, c := range []struct{ lost, want policies.ReplicaID }{{"a", "d"}, {"b", "d"}, {"d", "a"}} {
		b.SetOwnLoad(place.PeerLoad{Total: 50})
		for id, load := range map[policies.ReplicaID]policies.Tokens{"b": 100, "c": 100, "d": 500, "e": 600} {
			b.SetPeerLoad(0, id, place.PeerLoad{Total: load})
		}
		if got, ok := b.Rescue(0, prompt(2000), []policies.ReplicaID{c.lost}); !ok || cmp.Or(got.Replica, "a") != c.want {
			t.Errorf("after the loss of %s: %q, %v; want %q", c.lost, got.Replica, ok, c.want)
		}
	}
}

func TestRescue(t *testing.T) {
	b := peersOf(t)
	var tried []policies.ReplicaID
	want := func(id policies.ReplicaID, ok bool) {
		t.Helper()
		got, is := b.Rescue(0, prompt(2000), tried)
		if got != at(id) || is != ok {
			t.Errorf("after %v: %q %v, want %q", tried, got.Replica, is, id)
		}
		tried = append(tried, id)
		if id == "" {
			tried[len(tried)-1] = "a"
		}
	}
	b.SetOwnLoad(place.PeerLoad{Total: 50})
	b.SetPeerLoad(0, "d", place.PeerLoad{Total: 100})
	b.SetPeerLoad(0, "b", place.PeerLoad{Total: 100})
	want("d", true) // its load is known; e's is not
	want("e", true) // in its stage
	want("f", true) // in a longer stage
	want("", true)  // in a shorter stage: this replica, before b with more load and c with an unknown load
	want("b", true)
	want("c", true)
	want("", false)
	// Many requests that are rescued at once spread over the replicas.
	b = peersOf(t)
	b.SetPeerLoad(0, "d", place.PeerLoad{})
	b.SetPeerLoad(0, "e", place.PeerLoad{})
	count := map[policies.ReplicaID]int{}
	for range 10 {
		got, _ := b.Rescue(0, prompt(2000), nil)
		count[got.Replica]++
	}
	if count["d"] != 5 || count["e"] != 5 {
		t.Errorf("spread: %v", count)
	}
	// This replica is the last resort; if it drains, it is not used at all.
	b = peersOf(t)
	b.SetOwnLoad(place.PeerLoad{Draining: true})
	b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"a"}), nil)
	if _, ok := b.Rescue(0, prompt(1), nil); ok {
		t.Error("rescued by a draining replica")
	}
}

// BenchmarkPlace shows that placement among a thousand replicas costs no more than among a stage's
// sample.
func BenchmarkPlace(b *testing.B) {
	for _, n := range [...]int{16, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := make([]policies.ReplicaID, n)
			for i := range ids {
				ids[i] = policies.ReplicaID(fmt.Sprintf("r%d", i))
			}
			x := place.NewPeers(place.PeersConfig{Self: "r0", Placer: place.Policy{Queue: 1}})
			x.SetView(policies.OneStagePlan("m", ids), peers(ids...))
			for i := range min(n, 24) {
				x.SetPeerLoad(0, ids[i*n/min(n, 24)], place.PeerLoad{})
			}
			for b.Loop() {
				x.SetOwnLoad(place.PeerLoad{Waiting: 100})
				x.Place(0, prompt(10), nil)
			}
		})
	}
}

// A request for a LoRA adapter begins, and is rescued, only where the adapter is loaded.
func TestAdapters(t *testing.T) {
	replicas := peers("a", "b", "c", "d", "e", "f")
	replicas[1].Adapters, replicas[4].Adapters = []string{"sql", "poet"}, []string{"sql"}
	b := fleetOf(t, replicas)
	ask := func(name string, n policies.Tokens) policies.Request { return policies.Request{Model: name, Input: n} }
	for range 20 { // for any random sample and any loads
		for _, x := range []struct {
			name string
			n    policies.Tokens
			want policies.ReplicaID
		}{
			{"m", 10, ""}, {"sql", 10, "b"}, {"sql", 2000, "e"}, {"poet", 10, "b"},
			{"poet", 2000, "b"}, {"poet", 9000, "b"}, // in a shorter stage only
			{"not-loaded", 10, ""}, // the engine rejects it
		} {
			if got := b.Place(0, ask(x.name, x.n), nil); got != at(x.want) {
				t.Fatalf("%s of %d tokens: at %q, want %q", x.name, x.n, got.Replica, x.want)
			}
		}
		if got, ok := b.Rescue(0, ask("sql", 10), []policies.ReplicaID{"b"}); !ok || got != at("e") {
			t.Fatalf("rescued at %q, %v", got.Replica, ok)
		}
		if got, ok := b.Rescue(0, ask("poet", 10), []policies.ReplicaID{"b"}); ok {
			t.Fatalf("rescued at %q, which cannot run it", got.Replica)
		}
		b = fleetOf(t, replicas)
	}
	if b.ServesModel("m") != nil || b.ServesModel("sql") == nil || b.ServesModel("sql")("a") || !b.ServesModel("sql")("e") {
		t.Error("who fits is wrong")
	}
}

// TestPrefillPeers checks which requests start at prefill replicas: p, and q, which is smaller.
func TestPrefillPeers(t *testing.T) {
	b := place.NewPeers(place.PeersConfig{Self: "a", Placer: place.Policy{}, Prefill: place.Prefill{}})
	replicas := peers("a", "b", "p", "q")
	replicas[2].Prefill, replicas[3].Prefill, replicas[3].Capacity.KV = true, true, 5000
	plan := policies.Plan{Model: "m", Stages: []policies.Stage{{Low: 0, High: 9000, Replicas: []policies.ReplicaID{"a"}}, {Low: 9000, High: policies.Unbounded, Replicas: []policies.ReplicaID{"b"}}}}
	b.SetView(plan, replicas)
	estimated := func(n policies.Tokens) policies.Request { return policies.Request{Input: n, Estimated: true} }
	want := func(what string, now policies.Micros, r policies.Request, id policies.ReplicaID) {
		t.Helper()
		if got := b.Place(now, r, nil); got.Replica != id || got.Prefill != (id == "p" || id == "q") {
			t.Errorf("%s: at %q, prefill %v, want %q", what, got.Replica, got.Prefill, id)
		}
	}
	want("no load is known", 0, estimated(2000), "")
	load := func(now policies.Micros) {
		b.SetOwnLoad(place.PeerLoad{})
		b.SetPeerLoad(now, "p", place.PeerLoad{Waiting: 1000, Total: 1000})
		b.SetPeerLoad(now, "q", place.PeerLoad{Waiting: 100, Total: 100})
	}
	load(0)
	want("the shorter queue", 0, estimated(4900), "q")
	want("it is full now", 0, estimated(2000), "p")
	want("one is full", 0, estimated(5000), "p") // 3000 wait there
	want("one is full", 0, estimated(5000), "p") // 8000
	want("both are full, or have a long queue", 0, estimated(5000), "")
	load(0)
	b.SetPeerLoad(0, "q", place.PeerLoad{Waiting: 100, Total: 3000})
	want("the shorter queue, but no room", 0, estimated(2001), "p")
	want("the shorter queue, and just room", 0, estimated(2000), "q")
	load(0)
	want("it cannot move", 0, policies.Request{Input: 2000, Estimated: true, Features: policies.Structured}, "")
	want("its stage is another", 0, prompt(9001), "b")
	want("short", 0, estimated(1000), "")
	// A move fails: others are not placed there for a second, then for two, until one succeeds.
	b.RecordPrefillMove(0, "q", false)
	want("after a failure", policies.Second-1, estimated(2000), "p")
	want("after the pause", policies.Second, estimated(2000), "q")
	b.RecordPrefillMove(0, "q", false)
	load(0)
	want("after another failure", 2*policies.Second-1, estimated(2000), "p")
	b.RecordPrefillMove(0, "q", true)
	want("after a success", 0, estimated(2000), "q")
	want("the load is old", 3*policies.Second+1, estimated(2000), "")
	load(0)
	b.MarkGone("q")
	want("gone", 0, estimated(2000), "p")
	b.SetOwnLoad(place.PeerLoad{Draining: true})
	b.SetPeerLoad(0, "b", place.PeerLoad{})
	want("the own replica drains", 0, estimated(2000), "b")
	load(0)
	if !b.Prefills() || b.IsPrefill() {
		t.Error("the prefill replicas are not known")
	}

	// They are the last resort for streams that lost their engine.
	for _, c := range []struct {
		tried []policies.ReplicaID
		want  policies.ReplicaID
	}{{[]policies.ReplicaID{"a"}, "b"}, {[]policies.ReplicaID{"a", "b"}, "q"}, {[]policies.ReplicaID{"a", "b", "q"}, "p"}} {
		if to, ok := b.Rescue(0, estimated(10), c.tried); !ok || to.Replica != c.want {
			t.Errorf("rescue after %v: %q, %v", c.tried, to.Replica, ok)
		}
	}
	b.SetPeerLoad(10*policies.Second, "p", place.PeerLoad{Total: 1 << 20}) // that of q is old
	if to, ok := b.Rescue(10*policies.Second, estimated(10), []policies.ReplicaID{"a", "b"}); !ok || to.Replica != "p" {
		t.Errorf("rescue with one known load: %q, %v", to.Replica, ok)
	}
	if _, ok := b.Rescue(0, estimated(10), []policies.ReplicaID{"a", "b", "p", "q"}); ok {
		t.Error("rescued at a replica that was tried")
	}

	// A replica that has the role gives no request to others.
	replicas[0].Prefill = true
	b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"b"}), replicas)
	load(0)
	want("a prefill replica itself", 0, estimated(2000), "")
	if b.Prefills() || !b.IsPrefill() {
		t.Error("the own role is not known")
	}
}

// TestPrefillRanges checks that prompts start at the prefill replicas that are meant for them, however many others
// there are, and that a replica without a range is meant for all.
func TestPrefillRanges(t *testing.T) {
	b := place.NewPeers(place.PeersConfig{Self: "a", Placer: place.Policy{}, Prefill: place.Prefill{}})
	ids := []policies.ReplicaID{"a"}
	var ranges []policies.PrefillRange
	for i := range 20 { // more than a sample
		id := policies.ReplicaID(fmt.Sprintf("p%02d", i))
		ids = append(ids, id)
		ranges = append(ranges, policies.PrefillRange{Replica: id, Low: policies.Tokens(2000 * i), High: policies.Tokens(2000 * (i + 1))})
	}
	replicas := peers(ids...)
	for i := range replicas[1:] {
		replicas[1+i].Prefill = true
	}
	b.SetView(policies.OneStagePlan("m", ids[:1]), replicas)
	b.SetPrefillRanges(ranges)
	load := func() {
		for _, id := range ids[1:] {
			b.SetPeerLoad(0, id, place.PeerLoad{})
		}
	}
	for i := 1; i < 20; i++ {
		load()
		for _, r := range []policies.Request{prompt(policies.Tokens(2000 * i)), prompt(policies.Tokens(2000*i + 1999)), {Input: policies.Tokens(2000*i + 500), Cached: 500}} {
			b.SetPeerLoad(0, ids[1+i], place.PeerLoad{Waiting: 100}) // longer than the others' queues
			if got := b.Place(0, r, nil).Replica; got != ids[1+i] {
				t.Errorf("%d tokens, %d of them cached: at %q, want %q", r.Input, r.Cached, got, ids[1+i])
			}
			load()
		}
	}
	b.SetPeerLoad(0, "p03", place.PeerLoad{Waiting: 4097})
	if got := b.Place(0, prompt(6500), nil).Replica; got == "p03" || got == "" {
		t.Errorf("with a long queue where it is meant to be: at %q, want another", got)
	}
	load()
	b.SetView(policies.OneStagePlan("m", ids[:1]), replicas[:6]) // ranges stay with a new view
	if got := b.Place(0, prompt(6500), nil).Replica; got != "p03" {
		t.Errorf("with fewer replicas: at %q", got)
	}
	load()
	b.MarkGone("p03")
	if got := b.Place(0, prompt(6500), nil).Replica; got == "p03" || got == "" {
		t.Errorf("without its replica: at %q, want another", got)
	}
	b.SetPrefillRanges(ranges[:1])
	seen := map[policies.ReplicaID]bool{}
	for range 50 {
		load()
		seen[b.Place(0, prompt(6500), nil).Replica] = true
	}
	if seen["p00"] || len(seen) != 4 {
		t.Errorf("meant for p01, p02, p03 and p04, and not for p00: at %v", seen)
	}
}

// TestPrefillSpread checks that front ends with the same knowledge do not all give their prompts to
// the same of two equal prefill replicas.
func TestPrefillSpread(t *testing.T) {
	count := map[policies.ReplicaID]int{}
	for seed := range uint64(20) {
		b := place.NewPeers(place.PeersConfig{Self: "a", Placer: place.Policy{}, Prefill: place.Prefill{}, Seed: seed})
		replicas := peers("a", "p", "q")
		replicas[1].Prefill, replicas[2].Prefill = true, true
		b.SetView(policies.OneStagePlan("m", []policies.ReplicaID{"a"}), replicas)
		b.SetPeerLoad(0, "p", place.PeerLoad{})
		b.SetPeerLoad(0, "q", place.PeerLoad{})
		count[b.Place(0, prompt(2000), nil).Replica]++
	}
	if count["p"] < 4 || count["q"] < 4 {
		t.Errorf("of 20 front ends: %v", count)
	}
}
