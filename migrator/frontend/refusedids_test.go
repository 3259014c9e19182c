package frontend

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	streamedChat = `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":20,"stream":true}`
	wholeChat    = `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":20}`
)

// TestRefusedTokenIDs checks an engine that refuses return_token_ids with streaming chats. Clients get the answers that it
// gives without; these requests cannot move, and the log and the status say so. Other requests are not concerned.
func TestRefusedTokenIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		f := newFleet(t, 1, func(c *Config) { c.Logger = log.Logger() })
		srv, e := f.servers[0], f.engines[0]
		e.refusesIDs.Store(true)
		const path = "/v1/chat/completions"
		for i, body := range []string{streamedChat, wholeChat, streamedChat, wholeChat} {
			want, before := f.directAnswer(path, body), e.calls.Load()
			if _, got := post(t, srv.client, srv.url, path, body); withoutIDs(got) != withoutIDs(want) {
				t.Errorf("request %d:\n got %s\nwant %s", i, got, want)
			}
			if n := e.calls.Load() - before; n != 1 && i > 0 {
				t.Errorf("request %d was sent %d times", i, n)
			}
		}
		if got := srv.Status().Engine.RefusesTokenIDs; len(got) != 1 || got[0] != path || log.Count("refuses return_token_ids") != 1 {
			t.Errorf("%q is known, and logged:\n%s", got, &log)
		}
		proceed := e.blockAt(3)
		answer := srv.call("POST", path, streamedChat)
		waitFor(t, func() bool { return len(srv.LocalLegs()) == 1 && srv.LocalLegs()[0].Request.Output > 0 })
		if leg := srv.LocalLegs()[0]; leg.Pinned == policies.NotPinned || !leg.Request.Features.Has(policies.HiddenTokens) {
			t.Errorf("a chat without ids can move: %+v", leg)
		}
		close(proceed)
		<-answer
		if resp, body := post(t, srv.client, srv.url, path, strings.Replace(streamedChat, "{", `{"return_token_ids":true,`, 1)); resp.StatusCode != 400 {
			t.Errorf("a client that asks for ids itself gets %s: %s", resp.Status, body)
		}
		post(t, srv.client, srv.url, "/v1/completions", longRequest)
		if !strings.Contains(*e.body.Load(), `"return_token_ids":true`) {
			t.Errorf("completions are sent without: %s", *e.body.Load())
		}
		e.refusesIDs.Store(false)
		srv.restart(t, e)
		post(t, srv.client, srv.url, path, streamedChat)
		if got := srv.Status().Engine.RefusesTokenIDs; len(got) != 0 || !strings.Contains(*e.body.Load(), `"return_token_ids":true`) {
			t.Errorf("of an engine that has started anew, %q is known", got)
		}
	})
}

// TestRefusedTokenIDsOfPeer checks a chat that is placed at a peer whose engine refuses return_token_ids.
func TestRefusedTokenIDsOfPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := new(placer)
		f := newFleet(t, 2, func(c *Config) { c.Placer = p })
		p.peer.Store(&f.servers[1].peer)
		f.engines[1].refusesIDs.Store(true)
		want := f.directAnswer("/v1/chat/completions", streamedChat)
		if _, got := post(t, f.servers[0].client, f.servers[0].url, "/v1/chat/completions", streamedChat); withoutIDs(got) != withoutIDs(want) {
			t.Errorf("got %s\nwant %s", got, want)
		}
	})
}

// TestQuotedTokenIDs checks that an engine which quotes a request in an error is not taken for one that refuses
// return_token_ids: one bad request would pin all others.
func TestQuotedTokenIDs(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			body := testkit.Must(io.ReadAll(r.Body))
			w.WriteHeader(422)
			w.Write(append([]byte("bad temperature in "), body...))
			time.Sleep(time.Millisecond)
		})
		resp, got := post(t, f.client, f.url, "/v1/chat/completions", streamedChat)
		if resp.StatusCode != 422 || !strings.HasPrefix(got, "bad temperature") || len(f.Status().Engine.RefusesTokenIDs) != 0 {
			t.Errorf("%s: %s; %q", resp.Status, got, f.Status().Engine.RefusesTokenIDs)
		}
	})
}
