package frontend

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// TestEngineLimitSurvivesMoves checks that an answer does not get longer because
// it moved, when the engine bounds answers by a setting of its own.
func TestEngineLimitSurvivesMoves(t *testing.T) {
	const most = 60
	for i, kind := range [][2]string{
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":90,"stream":true}`},
		{"/v1/completions", `{"model":"m","prompt":"x","max_tokens":90,"stream":true}`},
		// From here on the limit is for chats without max_tokens only.
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"stream":true}`},
		{"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":90,"stream":true}`},
	} {
		for way, move := range map[string]func(f *fleet, stream string) error{
			"live": func(f *fleet, stream string) error {
				_, err := f.migrateLive(f.t.Context(), stream, 1, nil)
				return err
			},
			"reprompt": func(f *fleet, stream string) error { _, err := f.migrateReprompt(f.t.Context(), stream, 1); return err },
			"rescue":   func(f *fleet, _ string) error { f.engines[0].killAll(); return nil },
		} {
			synctest.Test(t, func(t *testing.T) {
				f, r := newRescueFleet(t, 2, nil)
				r.setTargets(f.target(1))
				for _, e := range f.engines {
					e.limitsDefault.Store(i > 2)
				}
				f.restartEngines(most)
				s := f.startKind(kind, 5)
				waitFor(t, func() bool { return move(f, s.id) == nil })
				if got := <-s.got; withoutCached(got) != withoutCached(s.want) {
					t.Errorf("%s, %s: moved\n got %s\nwant %s", way, kind, got, s.want)
				}
				f.requireIdle()
			})
		}
	}
}

// restartEngines gives every engine a limit and waits until its front end has
// noticed, as after a restart with another configuration.
func (f *fleet) restartEngines(maxNewTokens int64) {
	f.t.Helper()
	for i, e := range f.engines {
		e.unhealthy.Store(true)
		f.servers[i].waitForReady(f.t, false)
		e.maxNewTokens.Store(maxNewTokens)
		e.unhealthy.Store(false)
		f.servers[i].waitForReady(f.t, true)
	}
}

// TestEngineLimitOfPeer checks that the front end learns the limit of the peer's
// engine that runs the first leg, which may be another one than its own.
func TestEngineLimitOfPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fa, fb, _, b, pa, _ := newForwardingPair(t)
		pa.peer.Store(&fb.peer)
		f := &fleet{t: t, servers: []*testServer{fb}, engines: []*engine{b}}
		f.restartEngines(40)
		hold := b.blockAt(4)
		fa.call("POST", "/v1/completions", `{"model":"m","prompt":"x","max_tokens":90,"stream":true}`)
		f.servers = []*testServer{fa}
		s := f.waitForStream(4)
		if n := s.resume.Remaining(4); n != 36 {
			t.Errorf("after 4 tokens %d may follow elsewhere, want the 36 that the peer's engine would generate", n)
		}
		close(hold)
	})
}

// TestEngineWithoutLimit checks what is known of engines that state no limit, or
// only that of their context.
func TestEngineWithoutLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		srv := startServer(t, e.URL, nil)
		if l := *srv.outputLimits.Load(); l != (outputLimits{byDefault: 131071}) {
			t.Errorf("limits %+v of an engine that is limited by its context", l)
		}
		if n := srv.outputLimits.Load().of(openai.Completions, 0); n != 0 {
			t.Errorf("limit %d of completions", n)
		}
		for name, answer := range map[string]func(http.ResponseWriter){
			"another refusal":   func(w http.ResponseWriter) { w.WriteHeader(400); fmt.Fprint(w, `{"error":"no"}`) },
			"not authenticated": func(w http.ResponseWriter) { w.WriteHeader(401) },
			"an answer":         func(w http.ResponseWriter) { fmt.Fprint(w, "data: max_tokens=7, got\n\n") },
		} {
			e.answerProbes(answer)
			srv.askOutputLimits(t.Context())
			if l := *srv.outputLimits.Load(); l != (outputLimits{}) {
				t.Errorf("%s: limits %+v", name, l)
			}
		}
	})
}

// TestUsageAfterMove checks that the usage of a moved stream says nothing of the
// prompt that only its last leg knows.
func TestUsageAfterMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := newRescueFleet(t, 2, nil)
		r.setTargets(f.target(1))
		f.engines[1].moreUsage = `,"created_cache_tokens":4`
		s := f.startStream(longRequest)
		f.engines[0].killAll()
		if got := <-s.got; !strings.Contains(got, `"cached_tokens":null,"created_cache_tokens":null}`) {
			t.Errorf("the usage is the last leg's: %s", got[len(got)-300:])
		}
		f.requireIdle()
	})
}

// TestEchoKeepsPromptIDs checks that a stream with echo has the prompt's token
// ids, which vLLM sends with every echo.
func TestEchoKeepsPromptIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		srv := startServer(t, e.URL, nil)
		const events = `data: {"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"ab","logprobs":null,"finish_reason":"length","stop_reason":null,"prompt_token_ids":[1,2],"token_ids":null}],"system_fingerprint":"v"}` + "\n\ndata: [DONE]\n\n"
		e.sendEvents(events, false)
		if _, got := post(t, srv.client, srv.url, "/v1/completions", `{"model":"m","prompt":"a","echo":true,"stream":true,"stream_options":{"include_usage":true}}`); got != events {
			t.Errorf("got %s\nwant %s", got, events)
		}
	})
}
