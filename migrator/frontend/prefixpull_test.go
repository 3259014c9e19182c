package frontend

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// TestPrefixPull checks that a request whose prompt's beginning a peer holds is sent to the engine after a copy,
// and what is copied.
func TestPrefixPull(t *testing.T) {
	for _, x := range []struct {
		name   string
		ids    int
		held   policies.Tokens
		change func(f *fleet, c *Config)
		want   Pulls
		copied int // tokens that were asked for; 0: none
	}{
		{name: "held", ids: 3000, held: 2048, want: Pulls{Pulled: 1, Tokens: 2048}, copied: 2048},
		{name: "all of it", ids: 2048, held: 2048, want: Pulls{Pulled: 1, Tokens: 2048}, copied: 2048},
		{name: "not held", ids: 3000},
		{name: "shorter than a step", ids: 500, held: 2048},
		{name: "held by the own replica", ids: 3000, held: 2048, change: func(f *fleet, _ *Config) { f.prefixes.holder = policies.Target{Replica: "r0", Address: "x"} }},
		{name: "the link is slow", ids: 3000, held: 2048, want: Pulls{Recompute: 1}, change: func(_ *fleet, c *Config) {
			c.PrefixPull.Link = func(policies.ReplicaID) links.Path { return links.Path{Rate: links.Megabyte} }
		}},
		{name: "the link is far", ids: 3000, held: 2048, want: Pulls{Recompute: 1}, change: func(_ *fleet, c *Config) {
			c.PrefixPull.Link = func(policies.ReplicaID) links.Path {
				return links.Path{Rate: links.Gigabyte, Latency: 5 * policies.Second}
			}
		}},
		{name: "the KV is large", ids: 3000, held: 2048, want: Pulls{Recompute: 1}, change: func(_ *fleet, c *Config) { c.PrefixPull.TokenBytes = 1e6 }},
		{name: "the engine is fast", ids: 3000, held: 2048, want: Pulls{Recompute: 1}, change: func(_ *fleet, c *Config) { c.Cost.D2 = 1e-6 }},
		{name: "the copy fails", ids: 3000, held: 2048, want: Pulls{Failed: map[string]uint64{"why": 1}}, copied: 2048, change: func(f *fleet, _ *Config) {
			f.prefixes.copy = func(context.Context) error { return errors.New("no") }
		}},
		{name: "off", ids: 3000, held: 2048, change: func(_ *fleet, c *Config) { c.PrefixPull = nil }},
	} {
		if x.change == nil {
			x.change = func(*fleet, *Config) {}
		}
		t.Run(x.name, func(t *testing.T) {
			runFleet(t, 1, func(t *testing.T, f *fleet) {
				f.prefixes.held = x.held
				ids, body, _ := promptOf(x.ids)
				f.ask("/v1/completions", body)
				n := f.PrefixPulls()
				if n.Seconds = 0; !reflect.DeepEqual(n, x.want) {
					t.Errorf("%+v, want %+v", n, x.want)
				}
				var copies []PromptPrefix
				if x.copied > 0 {
					copies = []PromptPrefix{{Model: "m", Salt: "tenant", IDs: ids[:x.copied]}}
				}
				if !reflect.DeepEqual(f.prefixes.copies, copies) {
					t.Errorf("copied %+v", f.prefixes.copies)
				}
			}, pulls, x.change)
		})
	}
}

// A copy that takes as long as the engine would is abandoned, and the request begins at that moment; until then it
// counts as one from which its engine has nothing to give.
func TestPrefixPullDeadline(t *testing.T) {
	runFleet(t, 1, func(t *testing.T, f *fleet) {
		asked := make(chan bool, 1)
		f.prefixes.held, f.prefixes.copy = 2048, func(ctx context.Context) error {
			asked <- true
			<-ctx.Done()
			return ctx.Err()
		}
		e := f.engines[0]
		hold := e.blockAt(0)
		_, body, _ := promptOf(3000)
		begun, calls := time.Now(), e.calls.Load()
		answered := f.start(body)
		<-asked
		if w := f.engineWork(true); w.Waiting > 0 || len(f.LocalLegs()) != 1 {
			t.Errorf("while it waits for KV: %+v, %d legs", w, len(f.LocalLegs()))
		}
		time.Sleep(2 * time.Second)
		if e.calls.Load() != calls {
			t.Error("the request was sent to the engine before the deadline")
		}
		time.Sleep(60 * time.Millisecond)
		if w := f.engineWork(true); w.Waiting != 1 {
			t.Errorf("at its engine: %+v", w)
		}
		close(hold)
		if got := <-answered; !strings.HasPrefix(got, "200 ") {
			t.Error(got)
		}
		if took := time.Since(begun); took < 2048*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if n := f.PrefixPulls(); n.Failed[pullDeadline] != 1 || n.Seconds < 2.04 || n.Seconds > 2.06 {
			t.Errorf("%+v", n)
		}
	}, pulls)
}

// A client that leaves ends the copy, and nothing is sent to the engine.
func TestPrefixPullClientGone(t *testing.T) {
	runFleet(t, 1, func(t *testing.T, f *fleet) {
		asked, ended := make(chan bool, 1), make(chan bool, 1)
		f.prefixes.held, f.prefixes.copy = 2048, func(ctx context.Context) error {
			asked <- true
			<-ctx.Done()
			ended <- true
			return ctx.Err()
		}
		_, body, _ := promptOf(3000)
		calls := f.engines[0].calls.Load()
		f.abandon(body, func() { <-asked })
		<-ended
		waitFor(t, func() bool { return len(f.LocalLegs()) == 0 && f.PrefixPulls().Failed[pullLeft] == 1 })
		if f.engines[0].calls.Load() != calls {
			t.Error("the engine got the request")
		}
	}, pulls)
}

// Beyond the limit, requests begin without a pull.
func TestPrefixPullLimit(t *testing.T) {
	runFleet(t, 1, func(t *testing.T, f *fleet) {
		asked, proceed := make(chan bool, 4), make(chan bool)
		f.prefixes.held, f.prefixes.copy = 2048, func(context.Context) error {
			asked <- true
			<-proceed
			return nil
		}
		_, body, _ := promptOf(3000)
		var answers []chan string
		for range 2 {
			answers = append(answers, f.start(body))
			<-asked
		}
		f.post("/v1/completions", body)
		close(proceed)
		for _, answer := range answers {
			<-answer
		}
		if n := f.PrefixPulls(); n.Pulled != 2 || n.Failed[pullBusy] != 1 {
			t.Errorf("%+v", n)
		}
	}, pulls, configured(func(c *Config) { c.PrefixPull.MaxConcurrent = 2 }))
}

// A request that is forwarded gets its prefix where it runs, not where it arrived. The pull has a span below its
// request's and a record, whether it succeeds or not.
func TestPrefixPullAtPeer(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, fails := range []error{nil, errors.New("no link")} {
		synctest.Test(t, func(t *testing.T) {
			spans, records := tracetest.NewSpanRecorder(), make(chan PulledPrefix, 2)
			f := newFleet(t, 2, places, pulls, configured(func(c *Config) {
				if c.Replica == "r1" {
					c.Tracer, c.PrefixPull.OnPull = sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test"), func(p PulledPrefix) { records <- p }
				}
			}))
			f.prefixes.held, f.prefixes.copy = 1024, func(context.Context) error {
				time.Sleep(100 * time.Millisecond)
				return fails
			}
			f.placers[0].sendTo(f.target(1))
			_, body, _ := promptOf(3000)
			began := time.Now()
			if resp, got := f.post("/v1/completions", body, "Traceparent", parent); resp.StatusCode != http.StatusOK {
				t.Error(got)
			}
			if n, m := f.PrefixPulls(), f.servers[1].PrefixPulls(); n.Pulled != 0 || m.Tokens != 1024*m.Pulled || (m.Pulled == 1) != (fails == nil) {
				t.Errorf("where it arrived: %+v; where it runs: %+v", n, m)
			}
			if c := f.prefixes.copies; len(c) != 1 || c[0].Model != "m" || c[0].Salt != "tenant" || len(c[0].IDs) != 1024 {
				t.Errorf("copied %+v", c)
			}
			got := <-records
			if !strings.HasPrefix(got.Request, "r0/") {
				t.Errorf("request %q", got.Request)
			}
			got.Request = ""
			if want := (PulledPrefix{FrontEnd: "r0", Holder: "r9", Tokens: 1024, Start: began, Duration: 100 * time.Millisecond, Err: fails}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			synctest.Wait()
			all := slices.DeleteFunc(spans.Ended(), func(s sdk.ReadOnlySpan) bool { return s.Name() != "prefix.pull" })
			if len(all) != 1 {
				t.Fatalf("%d spans", len(all))
			}
			span, attrs := all[0], attributesOf(all[0])
			if attrs["cascade.from"] != "r9" || attrs["cascade.to"] != "r1" || attrs["cascade.tokens"] != "1024" || attrs["cascade.handoff"] != "false" ||
				span.SpanContext().TraceID().String() != parent[3:35] || (span.Status().Code == codes.Error) != (fails != nil) || span.EndTime().Sub(span.StartTime()) != 100*time.Millisecond {
				t.Errorf("%v, %v", attrs, span.Status())
			}
		})
	}
}

// TestPrefixPullUnknownIDs checks that a prompt of which the tokens cannot be had is not pulled, for that reason.
func TestPrefixPullUnknownIDs(t *testing.T) {
	runTokenizing(t, 1, func(t *testing.T, z *tokenizing) {
		body := z.nextBody(tokenizedPrompt)
		z.ask(body, 0)
		z.prefixes.held = 2048
		z.set(http.NotFound)
		z.ask(body, 0) // the tokens by which the holder is found are known by the text
		if n := z.PrefixPulls(); n.Failed[pullUnknown] != 1 || len(n.Failed) != 1 || len(z.prefixes.copies) > 0 {
			t.Errorf("%+v, %d copies", n, len(z.prefixes.copies))
		}
	}, pulls)
}

// TestPeerCopies checks that a peer finds out the tokens of a prompt that it has not seen if another replica holds
// more of it, as the sender says, and copies them: it was chosen by what it may copy.
func TestPeerCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(z *tokenizing, held string, asked int64, copied int) {
			t.Helper()
			z.asked.Store(0)
			z.prefixes.held, z.prefixes.copies = 4096, nil
			body := z.nextBody(tokenizedPrompt)
			if resp, _ := do(t, z.client, jsonRequest(z.peer, "/v1/completions", body, ForwardHeader, "r1", HeldHeader, held)); resp.StatusCode != http.StatusOK {
				t.Errorf("held %q: %s", held, resp.Status)
			}
			n := 0
			if c := z.prefixes.copies; len(c) == 1 {
				n = len(c[0].IDs)
			}
			if got := z.asked.Load(); got != asked || n != copied {
				t.Errorf("held %q: the engine was asked %d times for tokens, and %d of them copied; want %d and %d", held, got, n, asked, copied)
			}
		}
		z := newTokenizing(t, 1, pulls)
		send(z, "", 0, 0)
		send(z, "4096", 1, 4096) // the copy takes the ids that are known by then
		send(newTokenizing(t, 1), "4096", 0, 0)
	})
}

// handsPrefixesOver is pulls by KV connectors: r1 holds 1,024 tokens of every prompt.
func handsPrefixesOver(f *fleet, c *Config) {
	handsOver(f, c)
	pulls(f, c)
	c.PrefixPull.Copier, f.prefixes.held = nil, 1024
	if c.Replica == "r1" {
		f.prefixes.holder = policies.Target{Replica: "r1", Address: c.PeerListener.Addr().String()}
	}
}

// TestPrefixHandoff pulls by KV connectors: the holder's engine keeps the KV of exactly the prefix, the own one
// fetches it, and the request is answered as always. Whatever fails, it is answered, too.
func TestPrefixHandoff(t *testing.T) {
	for _, x := range []struct {
		name           string
		more           string // of the request
		config         setup
		change         func(*fleet)
		asked, fetched int64
		failed         string // the reason; "" for none
		left           bool   // the next request tries nothing
	}{
		{name: "handed over", asked: 1, fetched: 1},
		{name: "handoffs are off", config: func(_ *fleet, c *Config) { c.Handoff = false }, left: true},
		{name: "a request for its engine only", more: `"response_format":{"type":"json_object"},`, failed: "why"},
		{name: "the holder has no connector", change: func(w *fleet) { w.engines[1].connector = nil }, failed: "why", left: true},
		{name: "with ids of its own", change: func(w *fleet) { w.connector.lie = replacing(`{`, `{"prompt_token_ids":[1],`) }, asked: 1, failed: "why"},
		{name: "the holder hangs", change: func(w *fleet) { w.connector.keeping = hangs }, asked: 1, failed: pullDeadline, left: true},
	} {
		if x.config == nil {
			x.config = func(*fleet, *Config) {}
		}
		t.Run(x.name, func(t *testing.T) {
			runFleet(t, 3, func(t *testing.T, w *fleet) {
				c := w.connector
				if x.change != nil {
					x.change(w)
				}
				_, body, _ := promptOf(2000)
				body = "{" + x.more + body[1:]
				defer within(t, 1200*time.Millisecond)()
				w.ask("/v1/completions", body)
				n := w.PrefixPulls()
				if x.failed == "" && x.asked > 0 && (n.Pulled != 1 || n.Tokens != 1024) || x.failed != "" && (n.Pulled != 0 || n.Failed[x.failed] != 1) {
					t.Errorf("%+v", n)
				}
				if a, b := c.asked.Load(), c.fetched.Load(); a != x.asked || b != x.fetched {
					t.Errorf("%d engines were asked to keep KV, %d to fetch it", a, b)
				}
				if x.left {
					w.post("/v1/completions", body)
					if again := w.PrefixPulls(); !reflect.DeepEqual(again, n) || c.asked.Load() != x.asked || c.fetched.Load() != x.fetched {
						t.Errorf("the next request makes %+v of %+v", again, n)
					}
				}
			}, handsPrefixesOver, x.config)
		})
	}
}

// An engine that may have fetched the prefix after the holder's lease is not believed: the request begins at another
// replica. One that has fetched it in time may take longer than the lease for the first token.
func TestPrefixHandoffTooLate(t *testing.T) {
	for _, late := range []bool{true, false} {
		runFleet(t, 3, func(t *testing.T, w *fleet) {
			w.rescuer.setTargets(w.target(0), w.target(2))
			if late {
				w.connector.fetching = hangs
			}
			hold := make(chan struct{})
			w.engines[0].set(func(n int, q *http.Request) { // not the request that fetches
				if n == 0 && q.Header.Get(LegHeader) != "" {
					<-hold
				}
			}, nil)
			_, body, _ := promptOf(2000)
			answered := w.start(body)
			time.Sleep(31 * time.Second)
			calls := w.engines[2].calls.Load()
			close(hold)
			if got := <-answered; !strings.HasPrefix(got, "200 ") {
				t.Error(got)
			}
			if elsewhere := w.engines[2].calls.Load() > calls; elsewhere != late {
				t.Errorf("fetched too late: %v; the request began at another replica: %v", late, elsewhere)
			}
		}, rescues, handsPrefixesOver, configured(func(c *Config) {
			c.Cost.D2 = 0.1 // the prefix would take 102 s: handoff.Deadline counts
			c.PrefixPull.TokenBytes = 1
		}))
	}
}
