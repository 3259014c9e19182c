package move_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/move"
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
		w.end(t)
	})
}

// end waits for the fleet's streams, and checks that nothing is left over and nothing failed.
func (w *fleet) end(t *testing.T) {
	t.Helper()
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
}

// waitForEnd returns the replica's latest finished migration.
func (n *replica) waitForEnd(t *testing.T) move.Migration {
	t.Helper()
	all := n.executor.Migrations()
	if len(all) == 0 {
		t.Fatalf("%s knows no moves", n.id)
	}
	return all[len(all)-1]
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
		// The market gives a reservation up before its import: end finds none.
		if k := ask(b, bidask.Action{Kind: bidask.Reserve, Deal: deal(4), Peer: "a", Migration: policies.Migration{Request: "a/1", Length: 100}}); k != bidask.Reserved {
			t.Errorf("another hundred tokens: %v", k)
		}
		b.executor.Execute(bidask.Action{Kind: bidask.Release, Deal: deal(4)})
		delete(b.events, deal(4)) // which expects no end of a transfer
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

// TestReservationHasSlack checks how far a request may grow while it migrates: by an eighth of its
// length and by 256 tokens at least, or by one token where the engine has no more.
func TestReservationHasSlack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleet(2, 0, carryInside)
		defer w.close()
		buyer := w.replicas[1]
		for b := range uint32(8 * poolBlocks) { // nothing reads them
			buyer.engine.free = append(buyer.engine.free, poolBlocks+b)
		}
		for i, c := range []struct{ length, free, want int }{
			{16, 9 * poolBlocks, 16 + 256},
			{4096, 9 * poolBlocks, 4096 + 512},
			{16, 6, 20}, // in whole blocks
		} {
			buyer.engine.mu.Lock()
			buyer.engine.free = buyer.engine.free[:min(c.free, len(buyer.engine.free))]
			buyer.engine.mu.Unlock()
			deal := bidask.Deal{Seller: w.replicas[0].id, Number: uint64(i + 1)}
			answer := buyer.expect(deal)
			buyer.executor.Execute(bidask.Action{Kind: bidask.Reserve, Deal: deal, Peer: w.replicas[0].id, Migration: policies.Migration{Request: "q", Length: policies.Tokens(c.length)}})
			if got := buyer.await(answer); got != bidask.Reserved {
				t.Fatalf("%d tokens: %v", c.length, got)
			}
			buyer.engine.mu.Lock()
			if got := len(buyer.engine.held[deal.String()].blocks) * blockTokens; got != c.want {
				t.Errorf("%d tokens: room for %d is reserved, want %d", c.length, got, c.want)
			}
			buyer.engine.mu.Unlock()
		}
	})
}

// TestFrozenAwaitsNothing migrates a request to an engine that begins to prefill at one of the
// instants of the migration. Once the request is frozen, the target takes it over at once, however
// long its step is: the token after that step is the first that it can have.
func TestFrozenAwaitsNothing(t *testing.T) {
	for instant := time.Duration(0); instant < 40*time.Millisecond; instant += time.Millisecond {
		runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
			a, b := w.replicas[0], w.replicas[1]
			a.frontEnd.startStream("a/1", prompt(1, 50), 400, a)
			time.Sleep(100 * time.Millisecond)
			time.AfterFunc(instant, func() { b.engine.prefillUntil(time.Now().Add(time.Second)) })
			w.move("a/1", a, b, policies.Outlier)
			if m := a.waitForEnd(t); m.State != "moved" || m.Stall > 200*time.Millisecond {
				t.Errorf("the prefill begins after %v: %+v", instant, m)
			}
		})
	}
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
	m := testkit.Must(move.New(bareConfig()))
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

// unreliable is a transport that opens, and breaks in pulls.
type unreliable struct{ *wire }

func (unreliable) Name() string { return "unreliable" }

func (u unreliable) Export(g transport.Grant) (transport.Offer, error) {
	o, err := u.wire.Export(g)
	o.Transport = "unreliable"
	return o, err
}

func (u unreliable) Open(ctx context.Context, r policies.ReplicaID, o transport.Offer) (transport.Puller, error) {
	o.Transport = u.wire.Name()
	p, err := u.wire.Open(ctx, r, o)
	return breaking{p}, err
}

type breaking struct{ transport.Puller }

func (breaking) Pull(context.Context, transport.Plan) (transport.Stats, error) {
	return transport.Stats{}, errors.New("it broke")
}

// TestSpans checks that each side records its part of a migration as a span, with its steps as
// child spans, and that all of them belong to the request's trace.
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
		} else if parent := s.Parent(); parent.IsValid() && !strings.Contains(requestTrace, parent.TraceID().String()+"-"+parent.SpanID().String()) {
			t.Errorf("%s is below nothing", s.Name())
		}
		inTrace := strings.Contains(requestTrace, s.SpanContext().TraceID().String())
		if !inTrace {
			t.Errorf("%s is not in the request's trace", s.Name())
		}
	}
	slices.Sort(children)
	if got := strings.Join(slices.Compact(children), " "); got != "migration.source/migration.freeze migration.source/migration.list migration.source/migration.target migration.target/migration.prepare migration.target/migration.pull" {
		t.Errorf("steps %s", got)
	}
}

// TestRescued checks that the executor counts streams that lost their engine, and reports how long
// they waited.
func TestRescued(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	var stalls []string
	c := bareConfig()
	c.Tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test")
	c.OnStall = func(stall time.Duration, span trace.SpanContext) {
		stalls = append(stalls, stall.String()+" "+span.TraceID().String())
	}
	m := testkit.Must(move.New(c))
	began := time.Unix(1e9, 0)
	m.RecordRescue(frontend.Rescue{Stream: "a/1", From: "b", To: "c", Length: 90, Start: began, Duration: 2 * time.Second})
	m.RecordRescue(frontend.Rescue{Stream: "a/2", From: "b", Length: 95, Start: began, Duration: 30 * time.Second, Err: errors.New("no replica")})
	if s := m.Stats(); s.Rescued != 1 || s.Lost != 1 {
		t.Errorf("%+v", s)
	}
	if want := "2s " + spans.Ended()[0].SpanContext().TraceID().String(); len(stalls) != 1 || stalls[0] != want {
		t.Errorf("stalls %q, want %q", stalls, want)
	}
	var got []string
	for _, s := range spans.Ended() {
		got = append(got, s.Name()+" "+s.EndTime().Sub(s.StartTime()).String()+" "+s.Status().Description)
	}
	if len(got) != 2 || got[0] != "migration.rescue 2s " || got[1] != "migration.rescue 30s the stream ends" {
		t.Errorf("%q", got)
	}
}

// bareConfig has only what an executor requires.
func bareConfig() move.Config {
	return move.Config{Self: "a", FrontEnd: func() move.FrontEnd { return &frontEnd{} }, Send: (&replica{}).Send, Paths: transport.NewPaths(transport.PathsConfig{Self: "a"}), Address: func(policies.ReplicaID) string { return "" }, Notify: func(bidask.Event) {}}
}

func TestConfig(t *testing.T) {
	testkit.Must(move.New(bareConfig()))
	for name, spoil := range map[string]func(*move.Config){
		"self":     func(c *move.Config) { c.Self = "" },
		"front":    func(c *move.Config) { c.FrontEnd = nil },
		"send":     func(c *move.Config) { c.Send = nil },
		"paths":    func(c *move.Config) { c.Paths = nil },
		"address":  func(c *move.Config) { c.Address = nil },
		"notify":   func(c *move.Config) { c.Notify = nil },
		"envelope": func(c *move.Config) { c.MaxEnvelope = 1000 },
	} {
		c := bareConfig()
		spoil(&c)
		if _, err := move.New(c); err == nil {
			t.Errorf("a bad %s is taken", name)
		}
	}
}

// TestCancelledMigrationWarnsNot checks that a transport whose migration is cancelled while it is opened
// or pulls is not logged as one that fails, and that one that fails is.
func TestCancelledMigrationWarnsNot(t *testing.T) {
	defer func() { logger = nil }()
	for point, event := range map[string]string{"ticket": "opening a transport failed", "pull": "pull failed"} {
		for _, cancelled := range []bool{true, false} {
			var log testkit.Log
			logger = log.Logger()
			runInFleet(t, 2, 0, func(t *testing.T, w *fleet) {
				a, b := w.replicas[0], w.replicas[1]
				a.frontEnd.startStream("a/1", prompt(1, 50), 400, a)
				time.Sleep(100 * time.Millisecond)
				w.faults = append(w.faults, &fault{point: point, act: func() verdict {
					if !cancelled {
						return refuse
					}
					w.slow(a, b, time.Second)
					w.wg.Go(func() {
						time.Sleep(100 * time.Millisecond)
						b.withdraw(b.executor.Migrations()[0].ID)
					})
					return goOn
				}})
				w.move("a/1", a, b, policies.Outlier)
				if m := a.waitForEnd(t); cancelled && m.State != "failed" {
					t.Errorf("%s: %+v", point, m)
				}
			})
			if got := strings.Contains(log.String(), "level=WARN msg=\""+event); got == cancelled {
				t.Errorf("%s, cancelled %v:\n%s", point, cancelled, &log)
			}
		}
	}
}
