package reports

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at returns a time in seconds.
func at(s float64) time.Time { return zero.Add(time.Duration(s * float64(time.Second))) }

func here(port uint16, active int) endpoint {
	return endpoint{address: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), active: active}
}

const stage0 = "cascade/m/s0/rr"

func TestLoadsSumNodes(t *testing.T) {
	b := NewBook(0, nil)
	if b.Loads(at(0)) != nil {
		t.Error("loads without any report")
	}
	one, two := b.open(at(0), "e1", ""), b.open(at(0), "e2", "")
	withShare := here(1000, 3)
	withShare.answers, withShare.share = 4, 2
	b.report(at(1), one, []cluster{{name: stage0, endpoints: []endpoint{withShare, here(1001, 1)}}, {name: "cascade/m/s1/rr", endpoints: []endpoint{here(1001, 5)}}})
	b.report(at(1.5), two, []cluster{{name: stage0, endpoints: []endpoint{here(1000, 10)}}})
	seen := b.Loads(at(2))
	if s := seen[here(1000, 0).address]; s.Requests != 13 || s.Answers != 4 || s.Share != 0.5 {
		t.Errorf("%+v", s)
	}
	if s := seen[here(1001, 0).address]; s.Requests != 6 {
		t.Errorf("%+v", s)
	}
	// A message replaces the previous one as a whole.
	b.report(at(2), one, nil)
	if s := b.Loads(at(2))[here(1000, 0).address]; s.Requests != 10 {
		t.Errorf("%+v", s)
	}
	// Late reports do not count.
	if seen := b.Loads(at(4.7)); len(seen) != 0 || seen == nil {
		t.Errorf("%v", seen)
	}
	if b.Loads(at(5.1)) != nil {
		t.Error("all are late, and something is seen")
	}
}

func TestActive(t *testing.T) {
	b := NewBook(0, nil)
	gone := []string{"127.0.0.1:1000", "127.0.0.1:1002"}
	want := func(s float64, requests int, known bool) {
		t.Helper()
		if n, ok := b.Active(at(s), stage0, gone); ok != known || known && n != requests {
			t.Errorf("at %v: %d, %v; want %d, %v", s, n, ok, requests, known)
		}
	}
	want(0, 0, false) // no node reports
	one, two := b.open(at(0), "e1", ""), b.open(at(0), "e2", "")
	b.report(at(1), one, []cluster{{name: stage0, endpoints: []endpoint{here(1000, 3), here(1001, 9)}}, {name: "cascade/m/s1/rr", endpoints: []endpoint{here(1002, 9)}}})
	want(1, 3, false) // the other node has not reported
	b.report(at(1), two, []cluster{{name: stage0, endpoints: []endpoint{here(1002, 2)}, unplaced: 1}})
	want(1, 6, true)
	b.report(at(2), one, nil)
	want(2, 3, true)
	b.report(at(5), one, nil)
	want(5, 0, false) // e2 has stopped reporting
	b.close(at(6), two)
	want(6, 0, false)
	b.report(at(15), one, nil)
	b.expire(at(15.9))
	want(15.9, 0, false)
	b.expire(at(16))
	want(16, 0, true) // forgotten: its stream ended ten seconds ago
	if _, known := b.Active(at(16), stage0, []string{"x"}); known {
		t.Error("an address that is none is known")
	}
	if len(b.nodes) != 1 || b.nodes["e1"] == nil {
		t.Errorf("%v report", b.nodes)
	}
}

// TestNodeReconnects checks that the last report of an ended stream counts until the
// node reports on another one, and never twice.
func TestNodeReconnects(t *testing.T) {
	b := NewBook(0, nil)
	old := b.open(at(0), "e1", "")
	b.report(at(1), old, []cluster{{name: stage0, endpoints: []endpoint{here(1000, 3)}}})
	b.close(at(1), old)
	again := b.open(at(2), "e1", "")
	if n := b.Loads(at(2))[here(1000, 0).address].Requests; n != 3 {
		t.Errorf("%d before it reports", n)
	}
	b.report(at(3), again, []cluster{{name: stage0, endpoints: []endpoint{here(1000, 4)}}})
	if n := b.Loads(at(3))[here(1000, 0).address].Requests; n != 4 {
		t.Errorf("%d after", n)
	}
	b.report(at(3), old, []cluster{{name: stage0, endpoints: []endpoint{here(1000, 4)}}}) // too late to count
	if len(b.byID) != 1 {
		t.Errorf("%d desks", len(b.byID))
	}
}

// groupOf returns the prefix of a node id as the name of its group.
func groupOf(n *corev3.Node) string { g, _, _ := strings.Cut(n.GetId(), "-"); return g }

func TestJudge(t *testing.T) {
	const per = 40 // requests a second
	for _, c := range []struct {
		name                  string
		before, after, others float64 // shares of failures
		issued, otherIssued   int     // after, a second
		ticks                 int     // seconds after the change
		bad                   bool
	}{
		{"all is well", 0, 0, 0, per, per, 2, false},
		{"one in a hundred, as ever", 0.01, 0.01, 0.01, per, per, 10, false},
		{"half of them fail", 0, 0.5, 0, per, per, 1, true},
		{"all fail", 0.01, 1, 0.01, per, per, 1, true},
		{"they failed before", 0.5, 0.5, 0, per, per, 5, false},
		{"everybody's fail", 0, 0.5, 0.5, per, per, 5, false},
		{"others get better", 0.1, 0.1, 0, per, per, 5, false},
		{"five in a hundred: not at once", 0, 0.05, 0, per, per, 1, false},
		{"five in a hundred: after a while", 0, 0.06, 0, per, per, 20, true},
		{"too few to judge", 0, 1, 0, 5, per, 2, false},
		{"nothing comes any more", 0, 0, 0, 0, per, 5, true},
		{"nothing comes anywhere", 0, 0, 0, 0, 0, 5, false},
		{"nothing comes, for a moment", 0, 0, 0, 0, per, 2, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := NewBook(0, groupOf)
			own, other := b.open(at(0), "canary-1", ""), b.open(at(0), "rest-1", "")
			var debt [3]float64
			report := func(s int, desk uint64, kind int, share float64, n int) {
				debt[kind] += share * float64(n)
				failed := int(debt[kind])
				debt[kind] -= float64(failed)
				b.report(at(float64(s)), desk, []cluster{{name: stage0, issued: uint64(n), errors: uint64(failed), success: uint64(n - failed)}})
			}
			for s := range 20 {
				report(s, own, 0, c.before, per)
				report(s, other, 1, c.before, per)
			}
			since := at(19.5)
			var bad bool
			var why string
			for s := range c.ticks {
				report(20+s, own, 0, c.after, c.issued)
				report(20+s, other, 1, c.others, c.otherIssued)
				b.expire(at(float64(20 + s)))
				bad, why = b.Judge(at(float64(20+s)), "canary", since)
			}
			if bad != c.bad || bad != (why != "") {
				t.Errorf("bad %v (%s), want %v", bad, why, c.bad)
			}
		})
	}
	if bad, _ := NewBook(0, nil).Judge(at(1), "unknown", at(0)); bad {
		t.Error("an unknown group is bad")
	}
}

// TestJudgeIsSeldomWrong checks that hardly any of several equal groups is reported as
// bad.
func TestJudgeIsSeldomWrong(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	wrong := 0
	const runs = 1000
	for range runs {
		share := rng.Float64() * 0.1
		draw := func(n int) (f outcome) {
			f.ended = float64(n)
			for range n {
				if rng.Float64() < share {
					f.failed++
				}
			}
			return f
		}
		if moreFailures(draw(500+rng.IntN(5000)), draw(minEnded+rng.IntN(200)), draw(rng.IntN(5000))) != "" {
			wrong++
		}
	}
	if wrong > runs/200 {
		t.Errorf("%d of %d groups are blamed for nothing", wrong, runs)
	}
}

// TestRecordIsBounded checks that the record of a group is bounded for any reports.
func TestRecordIsBounded(t *testing.T) {
	var r record
	for i := range 10 * maxSamples {
		r.add(zero.Add(time.Duration(i)*37*time.Millisecond), sample{success: 1})
	}
	if n := len(r.samples); n > maxSamples {
		t.Errorf("%d samples", n)
	}
	if !r.trim(at(1e6)) {
		t.Error("the past is not forgotten")
	}
}

// TestTotals checks that the incremental totals equal a sum over all reports.
func TestTotals(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	b := NewBook(0, nil)
	var numbers []uint64
	for step := range 3000 {
		now := at(float64(step) / 7)
		switch rng.IntN(6) {
		case 0:
			numbers = append(numbers, b.open(now, string(rune('a'+rng.IntN(5))), ""))
		case 1:
			if len(numbers) > 0 {
				b.close(now, numbers[rng.IntN(len(numbers))])
			}
		case 2:
			b.expire(now)
		default:
			if len(numbers) == 0 {
				continue
			}
			var c []cluster
			for range rng.IntN(4) {
				e := here(uint16(1000+rng.IntN(6)), rng.IntN(50))
				e.answers = rng.Uint64N(3)
				e.share = float64(e.answers) / 2
				c = append(c, cluster{name: stage0, endpoints: []endpoint{e}})
			}
			b.report(now, numbers[rng.IntN(len(numbers))], c)
		}
		want := make(map[netip.AddrPort]int)
		for _, d := range b.byID {
			for _, c := range d.clusters {
				for _, e := range c.endpoints {
					if b.counts(now, d) {
						want[e.address] += e.active
					}
				}
			}
		}
		got := b.Loads(now)
		if len(got) != len(want) {
			t.Fatalf("step %d: %v, want %v", step, got, want)
		}
		for a, n := range want {
			if got[a].Requests != n || got[a].Share != 0 && got[a].Share != 0.5 {
				t.Fatalf("step %d: %v: %+v, want %d", step, a, got[a], n)
			}
		}
	}
}

// TestNodeIsBounded checks that the reports of one node's streams are bounded together,
// and that the part of a stream is released when it ends.
func TestNodeIsBounded(t *testing.T) {
	b := NewBook(0, nil)
	much := []cluster{{name: stage0 + strings.Repeat("x", maxNodeBytes*2/3)}}
	one, two, other := b.open(at(0), "e1", ""), b.open(at(0), "e1", ""), b.open(at(0), "e2", "")
	for _, stream := range [...]uint64{one, one, other} { // twice the same: the replaced report releases its part
		if !b.report(at(1), stream, much) {
			t.Error("within the bound, and refused")
		}
	}
	if b.report(at(1), two, much) || !b.report(at(1), two, []cluster{{name: stage0}}) {
		t.Error("the second stream has no bound, or none of its own to use")
	}
	b.close(at(2), one)
	b.expire(at(20))
	if !b.report(at(20), two, much) {
		t.Error("the memory of an ended stream is still counted")
	}
	b.close(at(20), two)
	b.close(at(20), other)
	b.expire(at(40))
	if len(b.nodes)+len(b.byID)+len(b.totals) > 0 {
		t.Errorf("%d nodes, %d streams and %d addresses are left", len(b.nodes), len(b.byID), len(b.totals))
	}
}
