package frontend

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// placer is a fake Placer: it sends every request to one peer.
type placer struct {
	peer    atomic.Pointer[string]
	last    atomic.Pointer[policies.Request]
	steps   atomic.Pointer[[]prefix.Step] // of the last prompt
	prefill atomic.Bool                   // the peer is a prefill replica
	holders atomic.Bool                   // peers hold prompts
}

func (p *placer) Prefills() bool { return p.prefill.Load() }

func (p *placer) HasHolders() bool { return p.holders.Load() }

func (p *placer) Place(r policies.Request, steps []prefix.Step) policies.Target {
	p.last.Store(&r)
	p.steps.Store(&steps)
	if s := p.peer.Load(); s != nil {
		return policies.Target{Replica: "r1", Address: *s, Prefill: p.prefill.Load()}
	}
	return policies.Target{}
}

var _ Placer = (*placer)(nil)

// newForwardingPair returns two servers, whose placers the test sets, and their engines.
func newForwardingPair(t *testing.T) (fa, fb *testServer, a, b *engine, pa, pb *placer) {
	a, b, pa, pb = newEngine(t), newEngine(t), new(placer), new(placer)
	fa = startServer(t, a.URL, func(c *Config) { c.Placer = pa })
	fb = startServer(t, b.URL, func(c *Config) { c.Placer, c.Replica = pb, "r1" })
	return fa, fb, a, b, pa, pb
}

// TestForward checks that a forwarded request gets the same bytes, is counted at
// the replica that runs it and nowhere else, and is forwarded at most once.
func TestForward(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fa, fb, a, b, pa, pb := newForwardingPair(t)
		pa.peer.Store(&fb.peer)
		pb.peer.Store(&fa.peer) // would forward it back if it were asked

		hold := b.blockAt(4)
		const body = `{"model":"m","prompt":"x","max_tokens":9,"stream":true}`
		req, _ := http.NewRequest("POST", "http://"+fa.url+"/v1/completions", strings.NewReader(body))
		req.Header.Set("x-cascade-tokens", "77")
		resp := testkit.Must(fa.client.Do(req))
		defer resp.Body.Close()
		answer := make(chan string)
		go func() {
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Error(err)
			}
			answer <- string(b)
		}()
		waitFor(t, func() bool {
			return fb.Status().Load == policies.Load{Running: 1, Held: 7, Iteration: fb.Status().Load.Iteration}
		})
		if got := fa.Status(); got.Load != (policies.Load{}) {
			t.Errorf("the front end of a forwarded request counts %+v", got.Load)
		}
		if got := *pa.last.Load(); got.Model != "m" || got.Input != 77 || got.MaxOutput != 9 || !got.Estimated {
			t.Errorf("the placer was asked about %+v", got)
		}
		if pb.last.Load() != nil {
			t.Error("the peer's placer was asked")
		}
		close(hold)
		got := <-answer
		b.set(nil, nil)
		_, want := post(t, fb.client, strings.TrimPrefix(b.URL, "http://"), "/v1/completions", body)
		if withoutIDs(got) != withoutIDs(want) {
			t.Errorf("forwarded\n got %s\nwant %s", got, want)
		}
		if a.calls.Load() != 0 || b.last.Load().Header.Get("x-cascade-tokens") != "" {
			t.Error("the wrong engine was asked, or the right one saw a control header")
		}
		if fb.Status().EstimateError == 0 {
			t.Error("the holder did not compare the estimate")
		}
		// Unstreamed answers too: relayed first, then assembled.
		for range 2 {
			_, got := post(t, fa.client, fa.url, "/v1/completions", `{"model":"m","prompt":"x"}`)
			_, want := post(t, fa.client, strings.TrimPrefix(b.URL, "http://"), "/v1/completions", `{"model":"m","prompt":"x"}`)
			if withoutIDs(got) != withoutIDs(want) {
				t.Errorf("forwarded\n got %s\nwant %s", got, want)
			}
		}
	})
}

// TestForwardFallsBack checks every way in which a peer can fail before its
// first token.
func TestForwardFallsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fa, fb, a, b, p, _ := newForwardingPair(t)
		const body = `{"model":"m","prompt":"x","stream":true}`
		serve := func(why, peer string) {
			t.Helper()
			p.peer.Store(&peer)
			before := a.calls.Load()
			resp, got := post(t, fa.client, fa.url, "/v1/completions", body)
			if resp.StatusCode != 200 || !strings.HasSuffix(got, "[DONE]\n\n") || a.calls.Load() != before+1 {
				t.Errorf("%s: %d %s", why, resp.StatusCode, got)
			}
		}
		serve("port closed", "127.0.0.1:1")
		b.sendEvents("", true)
		serve("its engine dies before the first token", fb.peer)
		b.set(nil, nil)
		b.unhealthy.Store(true)
		fb.waitForReady(t, false)
		serve("its engine is away", fb.peer)
		b.unhealthy.Store(false)
		fb.waitForReady(t, true)
		fb.Drain()
		serve("it drains", fb.peer)
		if got := fb.Status().Load; got.Running+got.Waiting != 0 {
			t.Errorf("the peer still counts %+v", got)
		}
	})
}

// TestPlaceKnowsCachedPrompts checks what a Placer that may choose prefill replicas learns of a request:
// how much of its prompt's text the own engine has computed, or will get, and whether it can move.
func TestPlaceKnowsCachedPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fa, fb, _, _, p, _ := newForwardingPair(t)
		// The engine has a token for each byte, and says that it has all of them cached: that teaches no ratio.
		taught := fa.tracker.Begin(loadtracker.Arrival{TextBytes: 5000})
		taught.SetUsage(5000, 0, 0)
		taught.End()
		text := strings.Repeat("over the hill and far away ", 400)
		ask := func(path, format string, args ...any) policies.Request {
			t.Helper()
			resp, got := post(t, fa.client, fa.url, path, fmt.Sprintf(format, args...))
			if resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, got)
			}
			return *p.last.Load()
		}
		completion := func(model, text string) policies.Request {
			t.Helper()
			return ask("/v1/completions", `{"model":%q,"max_tokens":3,"stream":true,"prompt":%q}`, model, text)
		}
		share := func(what string, r policies.Request, least, most float64) {
			t.Helper()
			if got := float64(r.Cached) / float64(r.Input); got < least || got > most {
				t.Errorf("%s: %d of %d tokens are cached, want %v to %v", what, r.Cached, r.Input, least, most)
			}
		}
		share("without prefill replicas", completion("m", text), 0, 0)
		share("without prefill replicas", completion("m", text), 0, 0)
		p.prefill.Store(true)
		share("which the engine has computed", completion("m", text), 0.94, 1) // in whole steps
		share("longer", completion("m", text+text), 0.45, 0.7)                 // little less than half of it is known: its length is estimated
		share("from another place on", completion("m", "x"+text), 0, 0)
		share("of another model", completion("n", text), 0, 0)
		chat := `{"model":"m","max_tokens":3,"stream":true,"messages":[{"role":"user","content":%q}%s]}`
		share("a conversation", ask("/v1/chat/completions", chat, text, ""), 0, 0)
		share("its next turn", ask("/v1/chat/completions", chat, text, `,{"role":"assistant","content":"yes"}`), 0.9, 1)

		// What a prefill replica computes will be here.
		p.peer.Store(&fb.peer)
		share("for the prefill replica", completion("m", "p"+text), 0, 0)
		share("for the prefill replica, again", completion("m", "p"+text), 0.94, 1)
		p.peer.Store(nil)
		fa.forgetCached()
		share("the engine has restarted", completion("m", text), 0, 0)

		if r := completion("m", text); policies.Movable(r) != policies.NotPinned {
			t.Errorf("a stream is %v", policies.Movable(r))
		}
		if r := ask("/v1/completions", `{"model":"m","max_tokens":3,"prompt":"x"}`); policies.Movable(r) == policies.NotPinned {
			t.Error("a request whose answer is no stream can move")
		}
	})
}
