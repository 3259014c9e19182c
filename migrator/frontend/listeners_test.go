package frontend

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/testkit/issuer"
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
			f.awaitEnd()
		})
	}
}

// TestAcceptsWhenReady checks that a server which starts, or takes over from another process, refuses no client that
// waits for it.
func TestAcceptsWhenReady(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			client := &http.Client{Transport: memory.transport(t, 1)}
			answered := make(chan int, 1)
			startServer(t, newEngine(t).URL, func(c *Config) {
				go func() {
					resp, _ := post(t, client, c.Listener.Addr().String(), "/v1/completions", longRequest)
					answered <- resp.StatusCode
				}()
			})
			if status := <-answered; status != http.StatusOK {
				t.Fatal(status)
			}
			client.CloseIdleConnections()
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
			if resp, _ := post(t, client, strings.TrimPrefix(server.URL, "http://"), "/v1/completions", `{}`); resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%+v", resp)
			}
			select {
			case err := <-f.done:
				t.Fatalf("Run has ended before its stream: %v", err)
			default:
			}
			close(hold)
			whole(long)
			f.awaitEnd()
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
			f.awaitEnd()
			if took := time.Since(retired); took < want || took > want+time.Second {
				t.Errorf("Run ended %v after Retire; want %v", took, want)
			}
		})
	}
}

// TestReadyWhenOpen checks that a server whose engine has returned is not ready before its
// address is open: proxies that learn that it is ready connect at once.
func TestReadyWhenOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
		inUse.Store(true)
		time.AfterFunc(10*time.Second, func() {
			if f.Status().EngineReady {
				t.Error("ready while the address is in use")
			}
			inUse.Store(false)
		})
		f.restart(e, nil)
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

// TestPeerRPC checks that the peers' port serves the migrators' gRPC, with and
// without TLS, that no timeout cuts a long stream of it, and that neither a drain
// nor the end of Run waits for it.
func TestPeerRPC(t *testing.T) {
	cert := httptest.NewTLSServer(nil)
	defer cert.Close()
	for _, secure := range []bool{false, true} {
		runInBubble(t, fmt.Sprint("TLS ", secure), func(t *testing.T) {
			ended := make(chan error, 1)
			rpc := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				if _, ok := w.(http.Flusher); !ok {
					t.Error("the writer cannot flush")
				}
				defer context.AfterFunc(r.Context(), func() { r.Body.Close() })()
				b := make([]byte, 4)
				for {
					if _, err := io.ReadFull(r.Body, b); err != nil {
						ended <- err
						return
					}
					w.Write(b)
					w.(http.Flusher).Flush()
				}
			})
			e := newEngine(t)
			scheme, transport := "http://", memory.transport(t, 2)
			if secure {
				scheme = "https://"
				transport.Protocols.SetHTTP2(true)
				transport.TLSClientConfig = cert.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			}
			f := startServer(t, e.URL, func(c *Config) {
				c.PeerRPC = rpc
				c.WriteTimeout, c.BodyTimeout, c.IdleTimeout = 20*time.Millisecond, 20*time.Millisecond, 20*time.Millisecond
				if secure {
					config := cert.TLS.Clone()
					config.NextProtos = []string{"h2", "http/1.1"}
					c.PeerListener = tls.NewListener(c.PeerListener, config)
				}
			})
			client := &http.Client{Transport: transport}
			body, say := io.Pipe()
			defer say.Close()
			req, _ := http.NewRequestWithContext(context.Background(), "POST", scheme+f.peer+"/cascade.migrator.v1.Peer/Exchange", body)
			req.Header.Set("Content-Type", "application/grpc")
			go io.WriteString(say, "ping")
			resp := testkit.Must(client.Do(req))
			defer resp.Body.Close()
			b := make([]byte, 4)
			for range 3 {
				if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "ping" {
					t.Fatalf("%q, %v", b, err)
				}
				time.Sleep(60 * time.Millisecond) // longer than every timeout of a request
				io.WriteString(say, "ping")
			}
			// Other requests on the same connection are legs.
			leg := testkit.Must(client.Post(scheme+f.peer+"/v1/completions", "application/json", strings.NewReader(`{}`)))
			defer leg.Body.Close()
			if leg.StatusCode != http.StatusForbidden || leg.ProtoMajor != 2 {
				t.Errorf("%+v", leg)
			}
			f.Drain()
			f.awaitEnd()
			<-ended
		})
	}
}

// TestPeerListenerHandedOver checks that the peers' port can be passed to another
// process: connections stay open.
func TestPeerListenerHandedOver(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		b := f.startStream(longRequest)
		testkit.Must(f.migrateLive(t.Context(), b.id, 1, nil))
		f.servers[1].cfg.PeerListener.Close()
		f.requireAnswer(b)
		select {
		case err := <-f.servers[1].done:
			t.Errorf("the server stopped: %v", err)
			f.servers[1].done <- err
		default:
		}
	})
}

// TestPeerCertificateNamesFrontEnd checks that a leg is served for the front end
// whose migrator's certificate it comes with, and for no other, whatever its
// header fields say.
func TestPeerCertificateNamesFrontEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		a := issuer.New(t)
		var logged testkit.Log
		f := startServer(t, e.URL, func(c *Config) { c.TrustDomain, c.Replica, c.Logger = issuer.TrustDomain, "r1", logged.Logger() })
		server := &httptest.Server{Listener: listen(), Config: &http.Server{Handler: f.PeerHandler()}}
		server.EnableHTTP2, server.TLS = true, a.ServerTLS(a.ComponentCertificate(t, identity.Migrator, "r1"))
		server.Config.ErrorLog = discardLog
		server.StartTLS()
		defer server.Close()
		leg := func(own tls.Certificate, front, request string) (int, string) {
			t.Helper()
			client := &http.Client{Transport: &http.Transport{DialContext: memory.dial, ForceAttemptHTTP2: true, TLSClientConfig: a.ClientTLS(own, identity.Matcher{TrustDomain: issuer.TrustDomain, Role: identity.Migrator, Name: "r1"})}}
			defer client.CloseIdleConnections()
			req := testkit.Must(http.NewRequest("POST", server.URL+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"x"}`)))
			if front != "" {
				req.Header.Set(ForwardHeader, front)
			}
			if request != "" {
				req.Header.Set(RequestHeader, request)
				req.Header.Set(LegEpochHeader, "1")
			}
			resp, body := do(t, client, req)
			return resp.StatusCode, body
		}
		r0 := a.ComponentCertificate(t, identity.Migrator, "r0")
		for name, c := range map[string]struct {
			own            tls.Certificate
			front, request string
			want           int
		}{
			"its own":             {r0, "r0", "r0/1", http.StatusOK},
			"its own, no name":    {r0, "r0", "", http.StatusOK},
			"another front":       {r0, "r2", "r2/1", http.StatusForbidden},
			"another's request":   {r0, "r0", "r2/1", http.StatusServiceUnavailable},
			"no front":            {r0, "", "", http.StatusForbidden},
			"a long name":         {r0, strings.Repeat("r", 4000), "", http.StatusForbidden},
			"a proxy":             {a.ComponentCertificate(t, identity.Proxy, "r0"), "r0", "", http.StatusForbidden},
			"the control plane":   {a.ComponentCertificate(t, identity.Control, "r0"), "r0", "", http.StatusForbidden},
			"without an identity": {a.Certificate(t), "r0", "", http.StatusForbidden},
		} {
			before := e.calls.Load()
			status, body := leg(c.own, c.front, c.request)
			if status != c.want || len(body) > 1<<10 {
				t.Errorf("%s: %d %.300s, want %d", name, status, body, c.want)
			}
			if served := e.calls.Load() - before; (served == 1) != (c.want == http.StatusOK) {
				t.Errorf("%s: the engine was asked %d times", name, served)
			}
		}
		if logged.Count("leg refused") == 0 {
			t.Errorf("logged:\n%s", &logged)
		}
		// Without TLS there is no certificate.
		w := httptest.NewRecorder()
		if f.PeerHandler().ServeHTTP(w, jsonRequest("x", "/v1/completions", `{}`, ForwardHeader, "r0")); w.Code != http.StatusForbidden {
			t.Errorf("without TLS: %d", w.Code)
		}
	})
}
