package frontend

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// TestDrain checks that a drain refuses at once, lets streams finish, and then
// ends Run; and that its deadline ends them with an error event.
func TestDrain(t *testing.T) {
	for _, waits := range []bool{true, false} {
		runInBubble(t, fmt.Sprint("waits ", waits), func(t *testing.T) {
			defer within(t, 5*time.Second)()
			e := newEngine(t)
			hold := e.blockAt(1)
			f := startServer(t, e.URL, func(c *Config) {
				if !waits {
					c.DrainTimeout = 20 * time.Millisecond
				}
			})
			resp := testkit.Must(f.client.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x","stream":true}`)))
			defer resp.Body.Close()
			f.Drain()
			f.Drain()
			waitFor(t, f.refusesConnections)
			if waits {
				if s := f.Status(); !s.Draining || s.Load.Running != 1 {
					t.Errorf("%+v", s)
				}
				close(hold)
			}
			b, err := io.ReadAll(resp.Body)
			if err != nil || strings.HasSuffix(string(b), "[DONE]\n\n") != waits || strings.Contains(string(b), errStopping.Error()) == waits {
				t.Errorf("%v, %q", err, b)
			}
			err = <-f.done
			f.done <- err
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRetire checks that a retired server refuses no request, asks every client
// to use another connection, and ends with its last stream; and that a drain may
// follow.
func TestRetire(t *testing.T) {
	for _, major := range []int{1, 2} {
		runInBubble(t, fmt.Sprint("HTTP/", major), func(t *testing.T) {
			e := newEngine(t)
			hold := e.blockAt(1)
			f := startServer(t, e.URL, func(c *Config) { c.Listener.Close(); c.Listener = nil })
			// A client that has not received the GOAWAY yet.
			server := &httptest.Server{Listener: listen(), Config: &http.Server{Handler: f.Handler(), Protocols: new(http.Protocols)}}
			server.Config.Protocols.SetHTTP1(true)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			var opened atomic.Int64
			server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
				if s == http.StateNew {
					opened.Add(1)
				}
			}
			server.Start()
			defer server.Close()
			client := &http.Client{Transport: memory.transport(t, major)}
			ask := func(body string) *http.Response {
				t.Helper()
				resp := testkit.Must(client.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(body)))
				if resp.StatusCode != http.StatusOK || resp.ProtoMajor != major {
					t.Errorf("%s, %s", resp.Status, resp.Proto)
				}
				return resp
			}
			whole := func(resp *http.Response) {
				t.Helper()
				defer resp.Body.Close()
				if b, err := io.ReadAll(resp.Body); err != nil || len(b) == 0 {
					t.Errorf("%q, %v", b, err)
				}
			}
			whole(ask(`{"prompt":"x","max_tokens":1}`))
			long := ask(`{"prompt":"x","stream":true,"max_tokens":3}`)
			f.Retire()
			f.Retire()
			for n := range 3 {
				// Over HTTP/2 the client may be asked just after it has its
				// answer.
				before := opened.Load()
				waitFor(t, func() bool {
					whole(ask(`{"prompt":"x","max_tokens":1}`))
					return n == 0 || opened.Load() > before
				})
			}
			if s := f.Status(); s.Load.Running != 1 || s.Draining {
				t.Errorf("%+v", s)
			}
			f.Drain()
			resp, err := client.Post(server.URL+"/v1/completions", "application/json", strings.NewReader(`{}`))
			if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%+v, %v", resp, err)
			} else {
				resp.Body.Close()
			}
			select {
			case err := <-f.done:
				t.Fatalf("Run has ended before its stream: %v", err)
			default:
			}
			close(hold)
			whole(long)
			err = <-f.done
			f.done <- err
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRetiredConnections checks that a retired server answers a request on an HTTP/1 connection that was long idle,
// and that it ends once its clients have closed or used theirs, or after five minutes.
func TestRetiredConnections(t *testing.T) {
	for name, closes := range map[string]bool{"closed": true, "kept": false} {
		runInBubble(t, name, func(t *testing.T) {
			f := startServer(t, newEngine(t).URL, func(c *Config) { c.HealthInterval = time.Second })
			var idle [2]net.Conn
			for i := range idle {
				idle[i] = testkit.Must(memory.dial(t.Context(), "tcp", f.url))
				defer idle[i].Close()
			}
			f.Retire()
			retired := time.Now()
			time.Sleep(4 * time.Minute)
			go io.WriteString(idle[0], "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(bufio.NewReader(idle[0]), nil)
			if err != nil || resp.StatusCode != http.StatusOK || !resp.Close {
				t.Fatalf("%+v, %v; want 200 and Connection: close", resp, err)
			}
			io.Copy(io.Discard, resp.Body)
			want := clientIdleConn
			if closes {
				idle[1].Close()
				want = 4 * time.Minute
			}
			err = <-f.done
			f.done <- err
			if took := time.Since(retired); err != nil || took < want || took > want+time.Second {
				t.Errorf("Run ended %v after Retire: %v; want %v", took, err, want)
			}
		})
	}
}

// TestReadyWhenOpen checks that a server whose engine has returned is not ready before its
// address is open: proxies that learn that it is ready connect at once.
func TestReadyWhenOpen(t *testing.T) {
	runInBubble(t, "", func(t *testing.T) {
		e := newEngine(t)
		var f *testServer
		var inUse atomic.Bool
		f = startServer(t, e.URL, func(c *Config) {
			c.Listen = func(network, address string) (net.Listener, error) {
				if f.Status().EngineReady {
					t.Error("ready before the address is open")
				}
				if inUse.Load() {
					return nil, errors.New("address already in use")
				}
				return memory.listenAt(network, address)
			}
		})
		e.unhealthy.Store(true)
		inUse.Store(true)
		f.waitForReady(t, false)
		e.unhealthy.Store(false)
		time.Sleep(time.Second)
		if f.Status().EngineReady {
			t.Error("ready while the address is in use")
		}
		inUse.Store(false)
		f.waitForReady(t, true)
		if f.refusesConnections() {
			t.Error("ready, and connections are refused")
		}
	})
}

func TestBrokenListener(t *testing.T) {
	lis := listen()
	defer lis.Close()
	f := testkit.Must(New(Config{Replica: "r", Engine: "http://127.0.0.1:1", Edges: []policies.Tokens{0}, PeerListener: brokenListener{lis}}))
	if err := f.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "no more") {
		t.Errorf("Run: %v", err)
	}
}

type brokenListener struct{ net.Listener }

func (brokenListener) Accept() (net.Conn, error) { return nil, errors.New("no more") }
