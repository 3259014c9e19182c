package frontend

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTextCallsAreBounded sends more calls to tokenize than an engine's HTTP server can do at once: it gets a few,
// half of them from one tenant, those beyond wait for a moment and are refused, and all slots are free afterwards.
func TestTextCallsAreBounded(t *testing.T) {
	for _, path := range []string{"/tokenize", "/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/count_tokens"} {
		synctest.Test(t, func(t *testing.T) {
			e := newEngine(t)
			proceed := make(chan struct{})
			end := sync.OnceFunc(func() { close(proceed) })
			var running, most, refused, served atomic.Int64
			hold := func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path != path {
					return
				}
				if n := running.Add(1); n > most.Load() {
					most.Store(n)
				}
				<-proceed
				running.Add(-1)
			}
			e.passthrough.Store(&hold)
			defer end()
			srv := startServer(t, e.URL, func(c *Config) { c.Overload.TenantHeader, c.HangTimeout = "X-Tenant", time.Minute })
			send := func(tenant string) {
				req, err := http.NewRequest("POST", "http://"+srv.url+path, strings.NewReader(`{"prompt":"x"}`))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("X-Tenant", tenant)
				resp, err := srv.client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				switch {
				case resp.StatusCode == http.StatusOK:
					served.Add(1)
				case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
					refused.Add(1)
				default:
					t.Errorf("%s: status %d", path, resp.StatusCode)
				}
			}
			for range 100 {
				go send("loud")
			}
			synctest.Wait()
			if running.Load() != maxTextCalls/2 || refused.Load() != 100-maxTenantCalls {
				t.Errorf("%s: a tenant has %d calls at the engine, and %d are refused at once; want %d, %d", path, running.Load(), refused.Load(), maxTextCalls/2, 100-maxTenantCalls)
			}
			for _, tenant := range []string{"a", "b", "c"} {
				for range maxTextCalls / 2 {
					go send(tenant)
				}
			}
			synctest.Wait()
			if running.Load() != maxTextCalls {
				t.Errorf("%s: %d calls are at the engine, want %d", path, running.Load(), maxTextCalls)
			}
			waitFor(t, func() bool {
				return running.Load() == maxTextCalls && served.Load() == 0 && refused.Load() == 100+3*maxTextCalls/2-maxTextCalls
			})
			end()
			waitFor(t, func() bool { return served.Load() == maxTextCalls && most.Load() == maxTextCalls })
			for range maxTextCalls {
				send("loud") // every slot is free
			}
			if served.Load() != 2*maxTextCalls {
				t.Errorf("%s: %d calls are served in the end", path, served.Load())
			}
			waitFor(t, func() bool {
				srv.textCalls.mu.Lock()
				defer srv.textCalls.mu.Unlock()
				return len(srv.textCalls.tenants)+len(srv.textCalls.slots) == 0
			})
		})
	}
}

// TestTextCallsEnd checks that neither clients that do not read their answers nor calls that the engine drops keep
// others out.
func TestTextCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		var answer atomic.Pointer[http.HandlerFunc]
		e.passthrough.Store(ptr(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/tokenize" {
				(*answer.Load())(w, r)
			}
		}))
		srv := startServer(t, e.URL, nil)
		read := make(chan struct{})
		answer.Store(ptr(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			<-read
		})))
		var slow []chan string
		for range maxTextCalls {
			slow = append(slow, srv.call("POST", "/tokenize", `{}`))
		}
		synctest.Wait()
		answer.Store(ptr(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })))
		for range maxTextCalls {
			if got := <-srv.call("POST", "/tokenize", `{}`); !strings.HasPrefix(got, "502") {
				t.Errorf("dropped by the engine: %s", got)
			}
		}
		answer.Store(ptr(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		waitFor(t, srv.ready.Load)
		if got := <-srv.call("POST", "/tokenize", `{}`); !strings.HasPrefix(got, "200") {
			t.Errorf("afterwards: %s", got)
		}
		close(read)
		for _, got := range slow {
			<-got
		}
	})
}

// TestLargeTextCallsAreRefused checks that no call makes the engine tokenize more than some megabytes.
func TestLargeTextCallsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		srv := startServer(t, e.URL, func(c *Config) { c.MaxBody = 2 * maxText })
		for size, want := range map[int]string{maxText / 2: "200", maxText: "413"} {
			if got := <-srv.call("POST", "/tokenize", `{"prompt":"`+strings.Repeat("x", size)+`"}`); !strings.HasPrefix(got, want) {
				t.Errorf("%d bytes: %.200s, want %s", size, got, want)
			}
		}
		if got := <-srv.call("POST", "/v1/embeddings", `{"input":"`+strings.Repeat("x", maxText)+`"}`); !strings.HasPrefix(got, "200") {
			t.Errorf("an input to embed: %.200s", got)
		}
	})
}
