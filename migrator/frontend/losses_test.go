package frontend

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies/length"
)

// sendAsProxy sends a request as proxies do by the published retry policy: to the first replica, and
// to the next ones while an answer says that it was refused, or while none comes. A replica that has
// announced that it works on the request is the last one.
func (f *fleet) sendAsProxy(path, body string) (answer *http.Response, text string) {
	f.t.Helper()
	for n := 1; ; n++ {
		last := n > 3
		trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { last = true; return nil }}
		s := f.servers[(n-1)%len(f.servers)]
		r := jsonRequest(s.url, path, body, length.AttemptHeader, strconv.Itoa(n))
		resp, text, err := tryDo(s.client, r.WithContext(httptrace.WithClientTrace(f.t.Context(), trace)))
		switch {
		case err != nil && (last || resp != nil):
			f.t.Fatal(err)
		case err == nil && (last || resp.Header.Get(length.RefusedHeader) == ""):
			return resp, text
		}
	}
}

// TestRequestOfDeath sends a request that breaks every engine that gets it, before it answers, after
// its header, or after three tokens, whether the proxy, the front end or the rescue sends it on. Two
// engines get it, and its client learns of it.
func TestRequestOfDeath(t *testing.T) {
	const whole = `{"model":"m","prompt":"x","max_tokens":70}`
	const streamed = `{"model":"m","prompt":"x","max_tokens":70,"stream":true}`
	for when, breaksAt := range map[string]func(token int, any *atomic.Bool) bool{ // nil: before the header
		"before the answer":             nil,
		"after the header":              func(n int, _ *atomic.Bool) bool { return n == 0 },
		"in the answer":                 func(n int, _ *atomic.Bool) bool { return n == 3 },
		"before the answer, then in it": func(n int, any *atomic.Bool) bool { return n == 0 && any.CompareAndSwap(false, true) || n == 3 },
	} {
		for _, sentOn := range []bool{false, true} {
			for _, body := range []string{streamed, whole} {
				by := map[bool]string{false: "by the proxy", true: "by the front end"}[sentOn]
				name := when + "/" + by + "/" + map[bool]string{true: "streamed", false: "whole"}[body == streamed]
				runInBubble(t, name, func(t *testing.T) {
					f := newFleet(t, 5, func(f *fleet, c *Config) {
						if sentOn {
							places(f, c)
							c.Rescuer = f.rescuer
						}
					})
					if body == whole { // answers are assembled once their shape is known
						for _, s := range f.servers {
							s.post("/v1/completions", whole)
						}
					}
					for i, p := range f.placers {
						p.sendTo(f.target((i + 1) % 5))
					}
					var broken [5]atomic.Bool
					var any atomic.Bool
					for i, e := range f.engines {
						die := func() {
							broken[i].Store(true)
							panic(http.ErrAbortHandler)
						}
						if breaksAt == nil {
							e.set(nil, func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); die() })
							continue
						}
						e.set(func(n int, _ *http.Request) {
							if breaksAt(n, &any) {
								die()
							}
						}, nil)
					}
					resp, text := f.sendAsProxy("/v1/completions", body)
					got := 0
					for i := range broken {
						if broken[i].Load() {
							got++
						}
					}
					if want := map[bool]int{true: 1, false: 2}[when == "in the answer" && !sentOn]; got != want {
						t.Errorf("it broke %d engines, want %d", got, want)
					}
					inStream := body == streamed && when != "before the answer" && when != "after the header"
					if inStream && !strings.Contains(text, `"error"`) || !inStream && resp.StatusCode != http.StatusBadGateway {
						t.Errorf("answered %s %s", resp.Status, text)
					}
				})
			}
		}
	}
}

// TestAnswersOfDeadEngine checks an engine whose core dies, and whose HTTP server answers 500 to what it has: the
// proxy is asked to send it to another one.
func TestAnswersOfDeadEngine(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		die := func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				e.unhealthy.Store(true)
			}
			http.Error(w, "EngineCore died", http.StatusInternalServerError)
		}
		e.set(nil, die)
		e.pass(die)
		for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
			resp, got := f.post(path, `{"prompt":"x","n":2}`, length.AttemptHeader, "1")
			if resp.StatusCode != http.StatusInternalServerError || got != "EngineCore died\n" || resp.Header.Get(length.RefusedHeader) != length.RefusedLost {
				t.Errorf("%s: %s %v %q", path, resp.Status, resp.Header, got)
			}
			f.restart(e, nil)
		}
	})
}

// TestReportedLoss checks an engine that dies while a request waits for its first token, and whose HTTP server says so
// in the stream, as stock vLLM's does: the proxy sends it to another one. Without a proxy the client gets the report.
func TestReportedLoss(t *testing.T) {
	const report = `{"error":{"message":"EngineCore died","type":"InternalServerError","param":null,"code":500}}`
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		want := f.directAnswer("/v1/completions", longRequest)
		f.engines[0].sendEvents("data: "+report+"\n\ndata: [DONE]\n\n", false)
		if resp, got := f.sendAsProxy("/v1/completions", longRequest); resp.StatusCode != http.StatusOK || withoutIDs(got) != withoutIDs(want) {
			t.Errorf("got %s %s\nwant %s", resp.Status, got, want)
		}
		if got := <-f.start(longRequest); got != "500  "+report {
			t.Errorf("without a proxy: %s", got)
		}
		f.requireIdle()
	})
}

// TestRequestOfDeathPassesThrough is TestRequestOfDeath for what the front end does not parse.
func TestRequestOfDeathPassesThrough(t *testing.T) {
	runFleet(t, 5, func(t *testing.T, f *fleet) {
		var broken atomic.Int32
		for _, e := range f.engines {
			e.pass(func(http.ResponseWriter, *http.Request) {
				broken.Add(1)
				panic(http.ErrAbortHandler)
			})
		}
		for i, path := range []string{"/v1/embeddings", "/tokenize"} {
			resp, text := f.sendAsProxy(path, `{"prompt":"x"}`)
			if n := broken.Load(); int(n) != 2*(i+1) || resp.StatusCode != http.StatusBadGateway {
				t.Errorf("%s: %s %s; %d engines broken in all, want 2 for each", path, resp.Status, text, n)
			}
		}
	})
}

// TestAnnouncesLastAttempt checks that a proxy which tries a request again learns that an engine has
// got it, before the answer, so that it makes no third attempt if this front end dies.
func TestAnnouncesLastAttempt(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		interim := make(chan int, 10)
		send := func(attempt string) (status int) {
			trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
				interim <- code
				return nil
			}}
			r := jsonRequest(f.url, "/v1/completions", `{"prompt":"x"}`, length.AttemptHeader, attempt)
			resp, _ := do(t, f.client, r.WithContext(httptrace.WithClientTrace(t.Context(), trace)))
			return resp.StatusCode
		}
		for _, attempt := range []string{"", "1", "x"} {
			if status := send(attempt); status != 200 || len(interim) > 0 {
				t.Errorf("attempt %q: %d, %d interim answers", attempt, status, len(interim))
			}
		}
		e.set(func(n int, _ *http.Request) {
			if n > 0 {
				return
			}
			if code := <-interim; code != http.StatusProcessing {
				t.Errorf("interim status %d", code)
			}
		}, nil)
		if status := send("2"); status != 200 || len(interim) > 0 {
			t.Errorf("attempt 2: %d, %d more interim answers", status, len(interim))
		}
		e.die()
		synctest.Wait() // until the front end has seen that its idle connections are closed
		if status := send("2"); status != 503 || len(interim) > 0 {
			t.Errorf("an engine that is away: %d, %d interim answers", status, len(interim))
		}
	})
}

// TestDeadConnectionIsNoLoss checks that an engine that died before it got a request does not count as lost by it: the
// transport found an idle connection of it, and then none.
func TestDeadConnectionIsNoLoss(t *testing.T) {
	for written, want := range map[error]bool{nil: true, syscall.EPIPE: false} {
		ctx, l := newCall(t.Context())
		trace := httptrace.ContextClientTrace(l.withBegin(ctx))
		trace.GetConn("engine:80")
		trace.GotConn(httptrace.GotConnInfo{Reused: true})
		trace.WroteRequest(httptrace.WroteRequestInfo{Err: written})
		trace.GetConn("engine:80") // the transport tries again, and dials in vain
		if got := isLost(l.failure(syscall.ECONNREFUSED)); got != want {
			t.Errorf("written: %v: the engine counts as lost: %v, want %v", written, got, want)
		}
	}
}

// TestEngineRefuses checks that an engine's refusal reaches the client as it is, and is
// marked for a proxy to try another replica once if the engine is unavailable. A peer's
// leg is then served by the own engine.
func TestEngineRefuses(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		fb, a := f.servers[1], f.engines[0]
		for _, body := range []string{`{"model":"m","prompt":"x"}`, `{"model":"m","prompt":"x","stream":true}`} {
			for status, refused := range map[int]string{503: length.RefusedLost, 500: "", 429: ""} {
				f.engines[1].set(nil, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", status) })
				for attempt, want := range map[string]string{"": "", "1": refused, "2": ""} {
					resp, got := fb.post("/v1/completions", body, length.AttemptHeader, attempt)
					if mark := resp.Header.Get(length.RefusedHeader); resp.StatusCode != status || got != "no\n" || mark != want {
						t.Errorf("attempt %q: %d %q %q, want %d %q", attempt, resp.StatusCode, got, mark, status, want)
					}
				}
				f.placers[0].sendTo(f.target(1))
				before := a.calls.Load()
				if resp, _ := f.post("/v1/completions", body); (resp.StatusCode == http.StatusOK) != (refused != "") || (a.calls.Load() > before) != (refused != "") {
					t.Errorf("by way of a peer that answers %d: %d, %d calls", status, resp.StatusCode, a.calls.Load()-before)
				}
			}
		}
	}, places)
}

// TestRefusalInTheGap checks the answer to a request that comes after the
// engine's death and before a health check has noticed it.
func TestRefusalInTheGap(t *testing.T) {
	runServer(t, func(c *Config) { c.HealthInterval = time.Hour }, func(t *testing.T, e *engine, f *testServer) {
		e.die()
		for _, path := range []string{"/v1/completions", "/tokenize"} {
			f.ready.Store(true)
			rec := &recorder{header: http.Header{}}
			req, _ := http.NewRequest("POST", path, strings.NewReader(`{"prompt":"x"}`))
			f.Handler().ServeHTTP(rec, req)
			if rec.status != 503 || rec.header.Get(length.RefusedHeader) == "" {
				t.Errorf("%s: %d %v", path, rec.status, rec.header)
			}
			f.waitForReady(false)
		}
	})
}

// TestResentRequest checks a request whose connection is lost after the engine
// has begun it, and that the transport sends again on another one. The engine
// then answers that the leg exists, which is no error of the client.
func TestResentRequest(t *testing.T) {
	runServer(t, nil, func(t *testing.T, e *engine, f *testServer) {
		const body = `{"model":"m","prompt":"x","stream":true}`
		taken := func(w http.ResponseWriter) { http.Error(w, "the leg is running", http.StatusConflict) }
		var begun sync.Map
		var twice atomic.Bool
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			if _, again := begun.LoadOrStore(r.Header.Get(LegHeader), true); !again {
				panic(http.ErrAbortHandler)
			}
			twice.Store(true)
			taken(w)
		})
		// Only a connection that has served a request can be closed unnoticed.
		waitFor(t, func() bool {
			if resp, got := f.post("/tokenize", body); resp.StatusCode != http.StatusOK {
				t.Fatalf("%d %s", resp.StatusCode, got)
			}
			if resp, got := f.post("/v1/completions", body); resp.StatusCode != http.StatusBadGateway || resp.Header.Get(length.RefusedHeader) != "" {
				t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, got)
			}
			return twice.Load()
		})
		e.set(nil, func(w http.ResponseWriter, _ *http.Request) { taken(w) })
		if resp, got := f.post("/v1/completions", body); resp.StatusCode != http.StatusConflict {
			t.Errorf("a conflict with something else: %d %s", resp.StatusCode, got)
		}
	})
}
