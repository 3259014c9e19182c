package executor_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// prompt returns the ids of a client's prompt.
func prompt(seed, n int) []uint32 {
	var ids []uint32
	for i := range n {
		ids = append(ids, uint32(mix(uint64(seed*1000+i))%50_000))
	}
	return ids
}

// runInFleet runs a test in a new fleet and checks the fleet at the end.
func runInFleet(t *testing.T, replicas int, link int64, test func(t *testing.T, w *fleet)) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleet(replicas, link, carryInside)
		test(t, w)
		for _, n := range w.replicas {
			if !waitFor(time.Minute, n.frontEnd.settled) {
				t.Error(w.unfinished())
			}
		}
		time.Sleep(silence)
		if left := w.findLeftovers(); left != nil {
			t.Error(left)
		}
		if v := w.failures(); v != "" {
			t.Error(v)
		}
		w.close()
	})
}

// waitForEnd returns the replica's latest finished migration.
func (n *replica) waitForEnd(t *testing.T) executor.Migration {
	t.Helper()
	all := n.executor.Migrations()
	if len(all) == 0 {
		t.Fatalf("%s knows no moves", n.id)
	}
	return all[len(all)-1]
}

// TestMigrationChain migrates a request from replica to replica, including its front end: legs are
// not chained, and both sides report each migration.
func TestMigrationChain(t *testing.T) {
	runInFleet(t, 4, 0, func(t *testing.T, w *fleet) {
		a := w.replicas[0]
		a.frontEnd.startStream("a/1", prompt(1, 50), 250, w.replicas[1])
		for i, hop := range []int{1, 2, 3, 0, 1, 0, 2, 3} {
			if i == 0 {
				time.Sleep(500 * time.Millisecond)
				continue
			}
			h, _ := a.frontEnd.Holder("a/1")
			from, to := w.replica(h.Replica), w.replicas[hop]
			w.move("a/1", from, to, policies.Drain)
			s, d := from.waitForEnd(t), to.waitForEnd(t)
			if s.ID != d.ID || s.State != "moved" || d.State != "moved" || s.Mode != "live" || d.Mode != "live" || d.Transport != "memory" || s.FrontEnd != "a" || d.FrontEnd != "a" ||
				s.Stall <= 0 || s.Stall > 20*time.Millisecond || d.Bytes != int64(d.Tokens)*1000 || s.Tokens != d.Tokens+1 || s.Cause != policies.Drain || s.From != from.id || s.To != to.id {
				t.Errorf("hop %d:\n%+v\n%+v", i, s, d)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if w.live != 7 || w.reprompted != 0 {
			t.Errorf("%d live moves and %d others", w.live, w.reprompted)
		}
	})
}

// TestOtherEngines migrates by Reprompt if blocks cannot be read.
func TestOtherEngines(t *testing.T) {
	runInFleet(t, 3, 0, func(t *testing.T, w *fleet) {
		w.replicas[2].engine.blind = true
		w.replicas[0].frontEnd.startStream("a/1", prompt(1, 50), 150, w.replicas[1])
		time.Sleep(300 * time.Millisecond)
		w.move("a/1", w.replicas[1], w.replicas[2], policies.Growth)
		s, d := w.replicas[1].waitForEnd(t), w.replicas[2].waitForEnd(t)
		if w.reprompted != 1 || s.Mode != "reprompt" || d.Mode != "reprompt" || s.Stall <= 0 || s.Stall > 200*time.Millisecond || d.Bytes != 0 || d.State != "moved" {
			t.Errorf("%d moves:\n%+v\n%+v", w.reprompted, s, d)
		}
		if all := w.replicas[1].executor.Stats(); all.Stalls != 1 || all.TotalStall != s.Stall || all.LongestStall != s.Stall {
			t.Errorf("%+v", all)
		}
		time.Sleep(100 * time.Millisecond)
		w.move("a/1", w.replicas[2], w.replicas[0], policies.Growth)
		if w.reprompted != 2 {
			t.Errorf("%d moves, the last: %+v", w.reprompted, w.replicas[2].waitForEnd(t))
		}
	})
}

// TestLinkIsPaced migrates over a link whose rate determines the duration, while the request grows.
func TestLinkIsPaced(t *testing.T) {
	runInFleet(t, 2, 400_000, func(t *testing.T, w *fleet) { // 400 tokens a second
		w.replicas[0].frontEnd.startStream("a/1", prompt(1, 100), 400, w.replicas[0])
		time.Sleep(200 * time.Millisecond)
		start := time.Now()
		w.move("a/1", w.replicas[0], w.replicas[1], policies.Growth)
		took, d := time.Since(start), w.replicas[1].waitForEnd(t)
		if least := time.Duration(d.Bytes) * time.Second / 400_000; d.State != "moved" || took < least || took > least+100*time.Millisecond || d.Rounds < 3 {
			t.Errorf("%v for %+v", took, d)
		}
		if s := w.replicas[1].executor.Stats(); s.Bytes != d.Bytes || s.Received["live"] != 1 || s.Copied == 0 || s.Rounds != uint64(d.Rounds) {
			t.Errorf("%+v", s)
		}
		if s := w.replicas[0].executor.Stats(); s.Sent["live"] != 1 || s.Stalls != 1 || s.TotalStall != s.LongestStall || s.TotalStall != w.replicas[0].waitForEnd(t).Stall {
			t.Errorf("%+v", s)
		}
	})
}

// TestMarketIsNotified requests impossible actions.
func TestMarketIsNotified(t *testing.T) {
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		a, b := w.replicas[0], w.replicas[1]
		ask := func(n *replica, a bidask.Action) bidask.EventKind {
			answers := n.expect(a.Deal)
			n.executor.Execute(a)
			return n.await(answers)
		}
		deal := func(n uint64) bidask.Deal { return bidask.Deal{Seller: "a", Number: n} }
		if k := ask(b, bidask.Action{Kind: bidask.Reserve, Deal: deal(1), Peer: "a", Migration: policies.Migration{Request: "a/1", Length: 1 << 20}}); k != bidask.ReservationRefused {
			t.Errorf("a million tokens: %v", k)
		}
		if k := ask(a, bidask.Action{Kind: bidask.Export, Deal: deal(2), Peer: "b", Migration: policies.Migration{Request: "a/1", Length: 100}}); k != bidask.TransferFailed {
			t.Errorf("a request that is not here: %v", k)
		}
		if k := ask(b, bidask.Action{Kind: bidask.Reserve, Deal: deal(3), Peer: "a", Migration: policies.Migration{Request: "a/1", Length: 100}}); k != bidask.Reserved {
			t.Errorf("a hundred tokens: %v", k)
		}
		// The Open of this action stays unanswered.
		if k := ask(b, bidask.Action{Kind: bidask.Import, Deal: deal(3), Peer: "a", Migration: policies.Migration{Request: "a/1", Length: 100}}); k != bidask.TransferFailed {
			t.Errorf("an import without an export: %v", k)
		}
		if m := b.waitForEnd(t); m.Failure != "unknown to the peer" {
			t.Errorf("%+v", m)
		}
		// Actions in the wrong order do nothing.
		for _, k := range []bidask.ActionKind{bidask.Abort, bidask.Release, bidask.Send, bidask.Return} {
			a.executor.Execute(bidask.Action{Kind: k, Deal: deal(9)})
		}
		time.Sleep(time.Second)
		if len(a.events[deal(9)]) != 0 {
			t.Errorf("the market hears %v", a.events[deal(9)])
		}
	})
}

// TestAdoptRefuses requests blocks that were not transferred.
func TestAdoptRefuses(t *testing.T) {
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		for _, move := range []string{"", "a", "/1", "a/", "a/x", "a/1", "a/-1", "a/b/1", "a/99999999999999999999"} {
			if params, err := w.replicas[1].executor.Adopt(move, "q", "a"); err == nil || params != nil {
				t.Errorf("%q: %s, %v", move, params, err)
			}
		}
	})
	m, err := executor.New(executor.Config{Self: "a", FrontEnd: &frontEnd{}, Network: &replica{}, Address: func(policies.ReplicaID) string { return "" }, Notify: func(bidask.Event) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Run(ctx); err != nil {
		t.Error(err)
	}
	if _, err := m.Adopt("a/1", "q", "a"); err == nil || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("after Run: %v", err)
	}
	if m.Run(t.Context()) == nil {
		t.Error("it runs twice")
	}
}

// TestFrontEnds names the front end of a request that is migrating, whether or not the request
// still runs there.
func TestFrontEnds(t *testing.T) {
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		a, b := w.replicas[0], w.replicas[1]
		a.frontEnd.startStream("a/1", prompt(1, 50), 250, b)
		time.Sleep(500 * time.Millisecond)
		b.executor.Execute(bidask.Action{Kind: bidask.Export, Deal: bidask.Deal{Seller: "b", Number: 1}, Peer: "a", Migration: policies.Migration{Request: "a/1", Length: 60}})
		time.Sleep(time.Millisecond)
		a.frontEnd.disconnectClient("a/1")
		time.Sleep(time.Millisecond)
		if got := b.executor.FrontEnds(); len(got) != 1 || got[0] != "a" {
			t.Errorf("while it is handed over: %v", got)
		}
		time.Sleep(time.Minute)
		if got := b.executor.FrontEnds(); len(got) != 0 {
			t.Errorf("after that: %v", got)
		}
	})
}

// unreliable is a transport that does not connect, or breaks.
type unreliable struct {
	*wire
	opens, pulls error
	probe        error
	mended       *atomic.Bool // once true, opens has no effect; nil: it always has
}

func (*unreliable) Name() string                  { return "unreliable" }
func (u *unreliable) Probe(context.Context) error { return u.probe }

func (u *unreliable) Export(g transport.Grant) (transport.Offer, error) {
	o, err := u.wire.Export(g)
	o.Transport = "unreliable"
	return o, err
}

func (u *unreliable) Open(ctx context.Context, r policies.ReplicaID, o transport.Offer) (transport.Puller, error) {
	if u.opens != nil && (u.mended == nil || !u.mended.Load()) {
		return nil, u.opens
	}
	o.Transport = u.wire.Name()
	p, err := u.wire.Open(ctx, r, o)
	if err != nil || u.pulls == nil {
		return p, err
	}
	return &breaking{p, u.pulls}, nil
}

type breaking struct {
	transport.Puller
	err error
}

func (b *breaking) Pull(context.Context, transport.Plan) (transport.Stats, error) {
	return transport.Stats{}, b.err
}

// TestTransportsFallBack prefers a transport that does not work.
func TestTransportsFallBack(t *testing.T) {
	broken := errors.New("it broke")
	for _, c := range []struct {
		name string
		u    unreliable
		by   string
	}{
		{"opens", unreliable{opens: broken}, "memory"},
		{"pulls", unreliable{pulls: broken}, "memory"},
		{"probe", unreliable{probe: broken}, "memory"},
		{"works", unreliable{}, "unreliable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			better = &c.u
			defer func() { better = nil }()
			runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
				w.replicas[0].frontEnd.startStream("a/1", prompt(1, 50), 120, w.replicas[0])
				time.Sleep(100 * time.Millisecond)
				w.move("a/1", w.replicas[0], w.replicas[1], policies.Growth)
				if d := w.replicas[1].waitForEnd(t); d.State != "moved" || d.Mode != "live" || d.Transport != c.by {
					t.Errorf("%+v", d)
				}
				routes := w.replicas[0].executor.TransportPaths()
				if len(routes) < 2 || routes[0].Transport != "unreliable" || routes[0].Err != c.u.probe || routes[1].Err != nil {
					t.Errorf("routes %+v", routes)
				}
				held, used := "", ""
				for _, p := range w.replicas[1].executor.TransportPaths() {
					switch {
					case p.Peer != "a":
					case p.Err != nil:
						held += p.Transport
					case p.Pulls > 0:
						used += p.Transport
					}
				}
				if failed := c.u.opens != nil || c.u.pulls != nil; used != c.by || (held == "unreliable") != failed {
					t.Errorf("from a: used %q, held back %q", used, held)
				}
			})
		})
	}
}

// TestTransportsAreHeldBack checks that the next migration does not use a transport that has
// failed, and that the executor forgets this together with the peer.
func TestTransportsAreHeldBack(t *testing.T) {
	mended := new(atomic.Bool)
	better = &unreliable{opens: errors.New("it broke"), mended: mended}
	defer func() { better = nil }()
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		a, b := w.replicas[0], w.replicas[1]
		for i, by := range []string{"memory", "memory", "unreliable"} {
			id := "a/" + strconv.Itoa(i+1)
			a.frontEnd.startStream(id, prompt(i+1, 50), 120, a)
			time.Sleep(100 * time.Millisecond)
			w.move(id, a, b, policies.Growth)
			if d := b.waitForEnd(t); d.State != "moved" || d.Transport != by {
				t.Errorf("move %d: %+v", i, d)
			}
			if i == 1 {
				mended.Store(true)
				time.Sleep(2 * time.Second) // longer than a first failure suspends the transport
			}
		}
		b.executor.PeerGone("a")
		time.Sleep(time.Millisecond)
		if got := b.executor.TransportPaths(); len(got) != 2 {
			t.Errorf("routes %+v", got)
		}
	})
}

// TestLongTable migrates a request with more blocks than one message can list.
func TestLongTable(t *testing.T) {
	envelope = 8 << 10
	defer func() { envelope = 0 }()
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		a, b := w.replicas[0], w.replicas[1]
		a.frontEnd.startStream("a/1", prompt(1, 1000), 1200, a)
		time.Sleep(100 * time.Millisecond)
		w.move("a/1", a, b, policies.Growth)
		// 4 KiB hold 117 blocks of 4 tokens with 2 checksums: 1,000 tokens take three messages.
		if s, d := a.waitForEnd(t), b.waitForEnd(t); s.State != "moved" || s.Mode != "live" || s.Rounds < 4 || d.Rounds < 4 {
			t.Errorf("%+v\n%+v", s, d)
		}
	})
}

// TestUnresponsiveEngine uses an engine that never thaws, drops or releases: its session ends,
// which undoes what was frozen and reserved.
func TestUnresponsiveEngine(t *testing.T) {
	runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
		a, b := w.replicas[0], w.replicas[1]
		a.frontEnd.startStream("a/1", prompt(1, 50), 300, a)
		time.Sleep(100 * time.Millisecond)
		for _, n := range w.replicas {
			n.engine.mu.Lock()
			n.engine.stubborn = true
			n.engine.mu.Unlock()
		}
		w.move("a/1", a, b, policies.Growth)
		time.Sleep(25 * time.Second)
		for _, n := range w.replicas {
			if s := n.executor.Stats(); s.SessionsAbandoned != 0 {
				t.Errorf("%s gives up too early: %+v", n.id, s)
			}
		}
		time.Sleep(10 * time.Second)
		for _, n := range w.replicas {
			if s := n.executor.Stats(); s.SessionsAbandoned != 1 || s.Running != 0 {
				t.Errorf("%s: %+v", n.id, s)
			}
			n.engine.mu.Lock()
			n.engine.stubborn = false
			n.engine.mu.Unlock()
		}
		a.frontEnd.startStream("a/2", prompt(2, 50), 300, b)
		time.Sleep(100 * time.Millisecond)
		w.move("a/2", b, a, policies.Growth)
	})
}

// TestSpans checks that each side records its part of a migration as a span, with its steps as
// child spans.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test")
	defer func() { tracer = nil }()
	runInFleet(t, 3, 0, func(t *testing.T, w *fleet) {
		w.replicas[0].frontEnd.startStream("a/1", prompt(1, 50), 120, w.replicas[1])
		time.Sleep(100 * time.Millisecond)
		w.move("a/1", w.replicas[1], w.replicas[2], policies.Growth)
	})
	parents, children := map[string]string{}, []string{}
	for _, s := range spans.Ended() {
		if strings.HasPrefix(s.Name(), "migration.source") || strings.HasPrefix(s.Name(), "migration.target") {
			parents[s.SpanContext().SpanID().String()] = s.Name()
			attrs := map[string]string{}
			for _, a := range s.Attributes() {
				attrs[string(a.Key)] = a.Value.Emit()
			}
			if attrs["cascade.migration"] != "b/1" || attrs["cascade.request"] != "a/1" || attrs["cascade.mode"] != "live" || attrs["cascade.from"] != "b" || attrs["cascade.to"] != "c" || attrs["cascade.cause"] != "growth" {
				t.Errorf("%s: %v", s.Name(), attrs)
			}
		}
	}
	for _, s := range spans.Ended() {
		if p, ok := parents[s.Parent().SpanID().String()]; ok {
			children = append(children, p+"/"+s.Name())
		} else if s.Parent().IsValid() {
			t.Errorf("%s is below nothing", s.Name())
		}
	}
	slices.Sort(children)
	if got := strings.Join(slices.Compact(children), " "); got != "migration.source/migration.freeze migration.source/migration.list migration.target/migration.prepare migration.target/migration.pull" {
		t.Errorf("steps %s", got)
	}
}

func TestConfig(t *testing.T) {
	good := func() executor.Config {
		return executor.Config{Self: "a", FrontEnd: &frontEnd{}, Network: &replica{}, Address: func(policies.ReplicaID) string { return "" }, Notify: func(bidask.Event) {}}
	}
	if _, err := executor.New(good()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*executor.Config){
		"self":     func(c *executor.Config) { c.Self = "" },
		"front":    func(c *executor.Config) { c.FrontEnd = nil },
		"network":  func(c *executor.Config) { c.Network = nil },
		"address":  func(c *executor.Config) { c.Address = nil },
		"notify":   func(c *executor.Config) { c.Notify = nil },
		"link":     func(c *executor.Config) { c.LinkRate = -1 },
		"envelope": func(c *executor.Config) { c.MaxEnvelope = 1000 },
		"transfer": func(c *executor.Config) { c.Transfer.PeerTimeout = -1 },
	} {
		c := good()
		spoil(&c)
		if _, err := executor.New(c); err == nil {
			t.Errorf("a bad %s is taken", name)
		}
	}
}
