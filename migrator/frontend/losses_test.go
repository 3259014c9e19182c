package frontend

import (
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/prefix"
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
		ctx := httptrace.WithClientTrace(f.t.Context(), trace)
		r := testkit.Must(http.NewRequestWithContext(ctx, "POST", "http://"+s.url+path, strings.NewReader(body)))
		r.Header.Set(length.AttemptHeader, strconv.Itoa(n))
		resp, err := s.client.Do(r)
		if err != nil {
			if last {
				f.t.Fatal(err)
			}
			continue
		}
		read, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		testkit.NoError(f.t, err)
		if last || resp.Header.Get(length.RefusedHeader) == "" {
			return resp, string(read)
		}
	}
}

// placerAt is a Placer that sends every request to one target.
type placerAt struct {
	placer
	target policies.Target
}

func (p *placerAt) Place(policies.Request, []prefix.Step) policies.Target { return p.target }

// TestRequestOfDeath sends a request that breaks every engine that gets it, before it answers, after
// its header, or after three tokens, whether the proxy, the front end or the rescue sends it on. Two
// engines get it, and its client learns of it.
func TestRequestOfDeath(t *testing.T) {
	const whole = `{"model":"m","prompt":"x","max_tokens":70}`
	const streamed = `{"model":"m","prompt":"x","max_tokens":70,"stream":true}`
	breaks := map[string]func(e *engine, broken, any *atomic.Bool){
		"before the answer": func(e *engine, broken, any *atomic.Bool) {
			e.set(nil, func(_ http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				broken.Store(true)
				panic(http.ErrAbortHandler)
			})
		},
		"after the header": func(e *engine, broken, any *atomic.Bool) {
			e.set(func(n int, _ *http.Request) {
				if n == 0 {
					broken.Store(true)
					panic(http.ErrAbortHandler)
				}
			}, nil)
		},
		"in the answer": func(e *engine, broken, any *atomic.Bool) {
			e.set(func(n int, _ *http.Request) {
				if n == 3 {
					broken.Store(true)
					panic(http.ErrAbortHandler)
				}
			}, nil)
		},
	}
	breaks["before the answer, then in it"] = func(e *engine, broken, any *atomic.Bool) {
		e.set(func(n int, _ *http.Request) {
			if n == 0 && any.CompareAndSwap(false, true) || n == 3 {
				broken.Store(true)
				panic(http.ErrAbortHandler)
			}
		}, nil)
	}
	for when, set := range breaks {
		for _, sentOn := range []bool{false, true} {
			for _, body := range []string{streamed, whole} {
				by := map[bool]string{false: "by the proxy", true: "by the front end"}[sentOn]
				name := when + "/" + by + "/" + map[bool]string{true: "streamed", false: "whole"}[body == streamed]
				runInBubble(t, name, func(t *testing.T) {
					var placers []*placerAt
					var rescuers []*rescuer
					f := newFleet(t, 5, func(c *Config) {
						if sentOn {
							placers, rescuers = append(placers, new(placerAt)), append(rescuers, new(rescuer))
							c.Placer, c.Rescuer = placers[len(placers)-1], rescuers[len(rescuers)-1]
						}
					})
					if body == whole { // answers are assembled once their shape is known
						for _, s := range f.servers {
							post(t, s.client, s.url, "/v1/completions", whole)
						}
					}
					for i := range placers {
						placers[i].target = f.target((i + 1) % 5)
						for n := range f.servers {
							rescuers[i].targets = append(rescuers[i].targets, f.target((i+2+n)%5))
						}
					}
					var broken [5]atomic.Bool
					var any atomic.Bool
					for i, e := range f.engines {
						set(e, &broken[i], &any)
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

// TestRequestOfDeathPassesThrough is TestRequestOfDeath for what the front end does not parse.
func TestRequestOfDeathPassesThrough(t *testing.T) {
	runFleet(t, 5, func(t *testing.T, f *fleet) {
		var broken atomic.Int32
		for _, e := range f.engines {
			e.passthrough.Store(ptr(func(http.ResponseWriter, *http.Request) {
				broken.Add(1)
				panic(http.ErrAbortHandler)
			}))
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
			ctx := httptrace.WithClientTrace(t.Context(), trace)
			body := strings.NewReader(`{"prompt":"x"}`)
			r := testkit.Must(http.NewRequestWithContext(ctx, "POST", "http://"+f.url+"/v1/completions", body))
			r.Header.Set(length.AttemptHeader, attempt)
			resp := testkit.Must(f.client.Do(r))
			resp.Body.Close()
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
		e.Listener.Close()
		e.CloseClientConnections()
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
