package market

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// encodeHeld returns the summary of a replica that holds one prompt, whose steps it returns, too.
func encodeHeld(n int) (encoded []byte, steps []prefix.Step) {
	ids := make([]uint32, n)
	x := prefix.NewIndex(1000, 1)
	x.Add(7, ids, 64)
	var s prefix.Summary
	x.Summarize(&s)
	return testkit.Must(s.AppendBinary(nil)), prefix.AppendSteps(nil, 7, ids)
}

// newPrefixMarket returns the market of replica a, whose peers of one stage are b and c.
func newPrefixMarket(t *testing.T, change func(*Config)) *Market {
	t.Helper()
	c := good()
	c.Placer = place.Policy{}
	change(&c)
	m, err := New(c)
	testkit.NoError(t, err)
	m.SetView(View{Plan: policies.OneStagePlan("m", []policies.ReplicaID{"a", "b", "c"}), Peers: []policies.Replica{{ID: "a", Peer: "a"}, {ID: "b", Peer: "b"}, {ID: "c", Peer: "c"}}})
	return m
}

// TestPrefixesAreSent checks that a summary says what this replica holds when that has changed, when the peer may
// be another process, and now and then.
func TestPrefixesAreSent(t *testing.T) {
	sent, held, version, asked := map[policies.ReplicaID][]*api.Summary{}, []byte("first"), uint64(1), 0
	m := newPrefixMarket(t, func(c *Config) {
		c.Network = network(func(to policies.ReplicaID, e *api.Envelope) { sent[to] = append(sent[to], e.GetSummary()) })
		c.Load = func() policies.Load { return policies.Load{Running: 3, Held: 50} }
		c.Prefixes = func(known uint64) ([]byte, uint64) {
			if asked++; known == version {
				return nil, version
			}
			return held, version
		}
	})
	last := func(id policies.ReplicaID) string {
		t.Helper()
		all := sent[id]
		if s := all[len(all)-1]; s.GetHeld() != 50 || s.GetRunning() != 3 {
			t.Errorf("the load is %v", s)
		}
		return string(all[len(all)-1].GetPrefixes())
	}
	want := func(what, b, c string) {
		t.Helper()
		m.sendSummaries()
		if gotB, gotC := last("b"), last("c"); gotB != b || gotC != c {
			t.Errorf("%s: %q and %q, want %q and %q", what, gotB, gotC, b, c)
		}
	}
	want("the first summary", "first", "first")
	want("nothing has changed", "", "")
	held, version = []byte("second"), 2
	want("it has changed", "second", "second")
	want("nothing has changed", "", "")
	m.PeerGone("b")
	m.PeerBack("b")
	want("b is back", "second", "")
	for range prefixRepeat - 3 {
		want("nothing has changed", "", "")
	}
	want("c may have lost it", "", "second")
	if asked != 5+prefixRepeat-2 {
		t.Errorf("asked %d times", asked)
	}
	if n := m.Status().PrefixBytesSent; n != 2*5+4*6 {
		t.Errorf("%d bytes are counted", n)
	}
}

// TestPrefixesAreReceived checks that requests are placed at the peer that holds their prompt, and what happens to a
// summary that is none.
func TestPrefixesAreReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPrefixMarket(t, func(*Config) {})
		encoded, steps := encodeHeld(4096)
		r := policies.Request{Input: 4096}
		want := func(what string, at policies.ReplicaID, holders int) {
			t.Helper()
			if got := m.Place(r, steps); got.Replica != at || at != "" && got.Cached != 4096 {
				t.Errorf("%s: at %+v, want %q", what, got, at)
			}
			if got := m.Status().Holders; got != holders || m.HasHolders() != (holders > 0) {
				t.Errorf("%s: %d holders, want %d", what, got, holders)
			}
			m.peers.SetOwnLoad(place.PeerLoad{})
			for _, id := range []policies.ReplicaID{"b", "c"} { // without what was placed there
				m.ReceiveSummary(id, &api.Summary{})
			}
		}
		want("nothing known", "", 0)
		m.ReceiveSummary("c", &api.Summary{Prefixes: encoded})
		want("c holds it", "c", 1)
		want("a summary that does not repeat it", "c", 1)
		for _, forged := range [][]byte{{1}, {2, 0, 0, 0, 0, 0}, {1, 0, 0xff, 0xff, 0xff, 0xff}, make([]byte, 1<<20), append([]byte(nil), encoded[:len(encoded)-1]...)} {
			m.ReceiveSummary("c", &api.Summary{Prefixes: forged})
		}
		want("forged summaries", "c", 1)
		s := m.Status()
		if s.PrefixesRefused != 5 || s.Ignored != 0 || s.PrefixBytesReceived < 1<<20 {
			t.Errorf("%d refused, %d ignored, %d bytes", s.PrefixesRefused, s.Ignored, s.PrefixBytesReceived)
		}
		nothing, _ := encodeHeld(0)
		m.ReceiveSummary("c", &api.Summary{Prefixes: nothing})
		want("c holds nothing any more", "", 0)
		m.ReceiveSummary("b", &api.Summary{Prefixes: encoded})
		want("b holds it", "b", 1)
		m.PeerGone("b")
		want("b is gone", "", 0)
		m.ReceiveSummary("stranger", &api.Summary{Prefixes: encoded})
		want("a stranger holds it", "", 0)
		m.ReceiveSummary("b", &api.Summary{Prefixes: encoded})
		time.Sleep(4 * time.Second)
		if got := m.Place(r, steps); got != (policies.Target{}) {
			t.Errorf("at %+v, whose load is old", got)
		}
	})
}
