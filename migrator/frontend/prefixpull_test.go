package frontend

import (
	"context"
	"errors"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// prefixes is a fake of what prefix pulls need: one holder, and a copier.
type prefixFake struct {
	mu     sync.Mutex
	holder policies.Target
	held   policies.Tokens
	copy   func(ctx context.Context, holder policies.ReplicaID, p PromptPrefix) (policies.Tokens, error)
	copies []PromptPrefix
}

func (f *prefixFake) LongestPrefix(steps []prefix.Step) (policies.Target, policies.Tokens) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(steps) == 0 {
		return policies.Target{}, 0
	}
	return f.holder, min(f.held, steps[len(steps)-1].Tokens)
}

func (f *prefixFake) Copy(ctx context.Context, holder policies.ReplicaID, p PromptPrefix) (policies.Tokens, string, error) {
	f.mu.Lock()
	f.copies = append(f.copies, p)
	do := f.copy
	f.mu.Unlock()
	if do != nil {
		tokens, err := do(ctx, holder, p)
		return tokens, "", err
	}
	return policies.Tokens(len(p.IDs)), "shm", nil
}

// computes takes a millisecond per token.
var computes = policies.Cost{D0: 0.01, D2: 1e-3}

// pulls is a change of a Config: pulls take a microsecond per token of KV.
func (f *prefixFake) pulls(c *Config) {
	c.Cost = computes
	c.PrefixPull = &PrefixPull{Holders: f, Copier: f, TokenBytes: 1000, Link: func(policies.ReplicaID) links.Path { return links.Path{Rate: links.Gigabyte} },
		Reason: func(error) string { return "why" }}
}

// promptOf returns a prompt of n token ids.
func promptOf(n int) (ids []uint32, body string) {
	ids = make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i%900 + 7)
	}
	return ids, `{"model":"m","cache_salt":"tenant","max_tokens":3,"prompt":` + formatIDs(ids, true) + `}`
}

// TestPrefixPull checks that a request whose prompt's beginning a peer holds is sent to the engine after a copy,
// and what is copied.
func TestPrefixPull(t *testing.T) {
	for _, x := range []struct {
		name   string
		ids    int
		held   policies.Tokens
		change func(f *prefixFake, c *Config)
		want   PrefixPulls
		copied int // tokens that were asked for; 0: none
	}{
		{name: "held", ids: 3000, held: 2048, want: PrefixPulls{Pulled: 1, Tokens: 2048}, copied: 2048},
		{name: "all of it", ids: 2048, held: 2048, want: PrefixPulls{Pulled: 1, Tokens: 2048}, copied: 2048},
		{name: "not held", ids: 3000},
		{name: "shorter than a step", ids: 500, held: 2048},
		{name: "held by the own replica", ids: 3000, held: 2048, change: func(f *prefixFake, _ *Config) { f.holder = policies.Target{Replica: "r0", Address: "x"} }},
		{name: "the link is slow", ids: 3000, held: 2048, want: PrefixPulls{Recompute: 1}, change: func(_ *prefixFake, c *Config) {
			c.PrefixPull.Link = func(policies.ReplicaID) links.Path { return links.Path{Rate: links.Megabyte} }
		}},
		{name: "the link is far", ids: 3000, held: 2048, want: PrefixPulls{Recompute: 1}, change: func(_ *prefixFake, c *Config) {
			c.PrefixPull.Link = func(policies.ReplicaID) links.Path {
				return links.Path{Rate: links.Gigabyte, Latency: 5 * policies.Second}
			}
		}},
		{name: "the KV is large", ids: 3000, held: 2048, want: PrefixPulls{Recompute: 1}, change: func(_ *prefixFake, c *Config) { c.PrefixPull.TokenBytes = 1e6 }},
		{name: "the engine is fast", ids: 3000, held: 2048, want: PrefixPulls{Recompute: 1}, change: func(_ *prefixFake, c *Config) { c.Cost.D2 = 1e-6 }},
		{name: "the copy fails", ids: 3000, held: 2048, want: PrefixPulls{Failed: map[string]uint64{"why": 1}}, copied: 2048, change: func(f *prefixFake, _ *Config) {
			f.copy = func(context.Context, policies.ReplicaID, PromptPrefix) (policies.Tokens, error) {
				return 0, errors.New("no")
			}
		}},
		{name: "off", ids: 3000, held: 2048, change: func(_ *prefixFake, c *Config) { c.PrefixPull = nil }},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, e := &prefixFake{holder: policies.Target{Replica: "r1", Address: "127.0.0.1:9"}, held: x.held}, newEngine(t)
				s := startServer(t, e.URL, func(c *Config) {
					if f.pulls(c); x.change != nil {
						x.change(f, c)
					}
				})
				ids, body := promptOf(x.ids)
				_, want := post(t, s.client, strings.TrimPrefix(e.URL, "http://"), "/v1/completions", body)
				resp, got := post(t, s.client, s.url, "/v1/completions", body)
				if resp.StatusCode != http.StatusOK || withoutIDs(got) != withoutIDs(want) {
					t.Errorf("%s %s, want %s", resp.Status, got, want)
				}
				n := s.PrefixPulls()
				if n.Seconds = 0; x.want.Failed == nil {
					x.want.Failed = map[string]uint64{}
				}
				if !reflect.DeepEqual(n, x.want) {
					t.Errorf("%+v, want %+v", n, x.want)
				}
				var copies []PromptPrefix
				if x.copied > 0 {
					copies = []PromptPrefix{{Model: "m", Salt: "tenant", IDs: ids[:x.copied]}}
				}
				if !reflect.DeepEqual(f.copies, copies) {
					t.Errorf("copied %+v", f.copies)
				}
			})
		})
	}
}

// A copy that takes as long as the engine would is abandoned, and the request begins at that moment; until then it
// counts as one from which its engine has nothing to give.
func TestPrefixPullDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := &prefixFake{holder: policies.Target{Replica: "r1", Address: "127.0.0.1:9"}, held: 2048}, newEngine(t)
		asked := make(chan context.Context, 1)
		f.copy = func(ctx context.Context, _ policies.ReplicaID, _ PromptPrefix) (policies.Tokens, error) {
			asked <- ctx
			<-ctx.Done()
			return 0, ctx.Err()
		}
		s := startServer(t, e.URL, f.pulls)
		hold := e.blockAt(0)
		_, body := promptOf(3000)
		begun, calls := time.Now(), e.calls.Load()
		answered := make(chan string)
		go func() { _, got := tryPost(t, s.client, s.url, "/v1/completions", body); answered <- got }()
		<-asked
		if w := s.engineWork(true); w.Waiting > 0 || len(s.LocalLegs()) != 1 {
			t.Errorf("while it waits for KV: %+v, %d legs", w, len(s.LocalLegs()))
		}
		time.Sleep(2 * time.Second)
		if e.calls.Load() != calls {
			t.Error("the request was sent to the engine before the deadline")
		}
		time.Sleep(60 * time.Millisecond)
		if w := s.engineWork(true); w.Waiting != 1 {
			t.Errorf("at its engine: %+v", w)
		}
		close(hold)
		<-answered
		if took := time.Since(begun); took < 2048*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if n := s.PrefixPulls(); n.Failed[pullDeadline] != 1 || n.Seconds < 2.04 || n.Seconds > 2.06 {
			t.Errorf("%+v", n)
		}
	})
}

// A client that leaves ends the copy, and nothing is sent to the engine.
func TestPrefixPullClientGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := &prefixFake{holder: policies.Target{Replica: "r1", Address: "127.0.0.1:9"}, held: 2048}, newEngine(t)
		asked, ended := make(chan bool, 1), make(chan bool, 1)
		f.copy = func(ctx context.Context, _ policies.ReplicaID, _ PromptPrefix) (policies.Tokens, error) {
			asked <- true
			<-ctx.Done()
			ended <- true
			return 0, ctx.Err()
		}
		s := startServer(t, e.URL, f.pulls)
		_, body := promptOf(3000)
		ctx, cancel := context.WithCancel(t.Context())
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+s.url+"/v1/completions", strings.NewReader(body))
		calls := e.calls.Load()
		go s.client.Do(req)
		<-asked
		cancel()
		<-ended
		waitFor(t, func() bool { return len(s.LocalLegs()) == 0 && s.PrefixPulls().Failed[pullLeft] == 1 })
		if e.calls.Load() != calls {
			t.Error("the engine got the request")
		}
	})
}

// Beyond the limit, requests begin without a pull.
func TestPrefixPullLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, e := &prefixFake{holder: policies.Target{Replica: "r1", Address: "127.0.0.1:9"}, held: 2048}, newEngine(t)
		asked, proceed := make(chan bool, 4), make(chan bool)
		f.copy = func(context.Context, policies.ReplicaID, PromptPrefix) (policies.Tokens, error) {
			asked <- true
			<-proceed
			return 2048, nil
		}
		s := startServer(t, e.URL, func(c *Config) { f.pulls(c); c.PrefixPull.MaxConcurrent = 2 })
		_, body := promptOf(3000)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() { tryPost(t, s.client, s.url, "/v1/completions", body) })
			<-asked
		}
		post(t, s.client, s.url, "/v1/completions", body)
		close(proceed)
		all.Wait()
		if n := s.PrefixPulls(); n.Pulled != 2 || n.Failed[pullBusy] != 1 {
			t.Errorf("%+v", n)
		}
	})
}

// A pull has a span below its request's and a record, whether it succeeds or not.
func TestPrefixPullRecord(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for _, fails := range []error{nil, errors.New("no link")} {
		synctest.Test(t, func(t *testing.T) {
			f, e, to := &prefixFake{holder: policies.Target{Replica: "r9", Address: "127.0.0.1:9"}, held: 1024}, newEngine(t), new(placer)
			f.copy = func(ctx context.Context, _ policies.ReplicaID, p PromptPrefix) (policies.Tokens, error) {
				time.Sleep(100 * time.Millisecond)
				return policies.Tokens(len(p.IDs)), fails
			}
			spans := tracetest.NewSpanRecorder()
			records := make(chan PulledPrefix, 2)
			fa := startServer(t, e.URL, func(c *Config) { c.Placer = to })
			fb := startServer(t, e.URL, func(c *Config) {
				f.pulls(c)
				c.Replica, c.Tracer, c.PrefixPull.OnPull = "r1", sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test"), func(p PulledPrefix) { records <- p }
			})
			to.peer.Store(&fb.peer)
			_, body := promptOf(3000)
			req, _ := http.NewRequestWithContext(t.Context(), "POST", "http://"+fa.url+"/v1/completions", strings.NewReader(body))
			req.Header.Set("Traceparent", parent)
			began := time.Now()
			resp := testkit.Must(fa.client.Do(req))
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			got := <-records
			if !strings.HasPrefix(got.Request, "r0/") {
				t.Errorf("request %q", got.Request)
			}
			got.Request = ""
			if want := (PulledPrefix{FrontEnd: "r0", Holder: "r9", Tokens: 1024, Start: began, Duration: 100 * time.Millisecond, Err: fails}); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
			synctest.Wait()
			pulls := 0
			for _, span := range spans.Ended() {
				if span.Name() != "prefix.pull" {
					continue
				}
				pulls++
				attrs := map[string]string{}
				for _, a := range span.Attributes() {
					attrs[string(a.Key)] = a.Value.Emit()
				}
				if attrs["cascade.from"] != "r9" || attrs["cascade.to"] != "r1" || attrs["cascade.tokens"] != "1024" || attrs["cascade.handoff"] != "false" ||
					span.SpanContext().TraceID().String() != parent[3:35] || (span.Status().Code == codes.Error) != (fails != nil) || span.EndTime().Sub(span.StartTime()) != 100*time.Millisecond {
					t.Errorf("%v, %v", attrs, span.Status())
				}
			}
			if pulls != 1 {
				t.Errorf("%d spans", pulls)
			}
		})
	}
}

// A request that is forwarded gets its prefix where it runs, not where it arrived.
func TestPrefixPullAtPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, a, b, to := &prefixFake{holder: policies.Target{Replica: "r9", Address: "127.0.0.1:9"}, held: 1024}, newEngine(t), newEngine(t), new(placer)
		fa := startServer(t, a.URL, func(c *Config) { f.pulls(c); c.Placer = to })
		fb := startServer(t, b.URL, func(c *Config) { f.pulls(c); c.Replica = "r1" })
		to.peer.Store(&fb.peer)
		_, body := promptOf(3000)
		if resp, got := post(t, fa.client, fa.url, "/v1/completions", body); resp.StatusCode != http.StatusOK {
			t.Error(got)
		}
		if n, m := fa.PrefixPulls(), fb.PrefixPulls(); n.Pulled != 0 || m.Pulled != 1 || m.Tokens != 1024 {
			t.Errorf("where it arrived: %+v; where it runs: %+v", n, m)
		}
		if len(f.copies) != 1 || f.copies[0].Model != "m" || f.copies[0].Salt != "tenant" || len(f.copies[0].IDs) != 1024 {
			t.Errorf("%d copies", len(f.copies))
		}
	})
}

// TestPrefixPullUnknownIDs checks that a prompt of which the tokens cannot be had is not pulled, for that reason.
func TestPrefixPullUnknownIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &prefixFake{holder: policies.Target{Replica: "r9", Address: "127.0.0.1:9"}}
		z := newTokenizing(t, f.pulls)
		body := z.nextBody(tokenizedPrompt)
		z.ask(body, 0)
		f.held = 2048
		z.set(http.NotFound)
		z.ask(body, 0) // the tokens by which the holder is found are known by the text
		if n := z.PrefixPulls(); n.Failed[pullUnknown] != 1 || len(n.Failed) != 1 || len(f.copies) > 0 {
			t.Errorf("%+v, %d copies", n, len(f.copies))
		}
	})
}

// TestPeerCopies checks that a peer finds out the tokens of a prompt that it has not seen if another replica holds
// more of it, as the sender says, and copies them: it was chosen by what it may copy.
func TestPeerCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &prefixFake{holder: policies.Target{Replica: "r2", Address: "127.0.0.1:9"}, held: 4096}
		send := func(z *tokenizing, held string, asked int64, copied int) {
			t.Helper()
			z.asked.Store(0)
			f.copies = nil
			body := z.nextBody(tokenizedPrompt)
			leg := jsonRequest(z.peer, "/v1/completions", body)
			leg.Header.Set(ForwardHeader, "r1")
			if held != "" {
				leg.Header.Set(HeldHeader, held)
			}
			resp := testkit.Must(z.client.Do(leg))
			if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("held %q: %s, %v", held, resp.Status, err)
			}
			resp.Body.Close()
			n := 0
			if len(f.copies) == 1 {
				n = len(f.copies[0].IDs)
			}
			if got := z.asked.Load(); got != asked || n != copied {
				t.Errorf("held %q: the engine was asked %d times for tokens, and %d of them copied; want %d and %d", held, got, n, asked, copied)
			}
		}
		z := newTokenizing(t, f.pulls)
		send(z, "", 0, 0)
		send(z, "4096", 1, 4096) // the copy takes the ids that are known by then
		send(newTokenizing(t), "4096", 0, 0)
	})
}
