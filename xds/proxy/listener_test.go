package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/routing"
)

// TestBindsThePlansAddress checks that a proxy without a Listener of its own binds the address of the
// plan, as soon as it is free.
func TestBindsThePlansAddress(t *testing.T) {
	c := newControl(t)
	v := twoStages([]*front{newFront(t, "r0"), newFront(t, "r1")})
	taken := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	v.Settings.Listen = taken.Addr().String()
	c.set(v, nil)
	p := c.runProxy(t, Config{})
	<-p.applied
	if p.Addr() != nil {
		t.Errorf("bound at %v", p.Addr())
	}
	taken.Close()
	<-p.Ready()
	resp, err := (&http.Client{Transport: transport(t, false)}).Get("http://" + taken.Addr().String() + "/sink")
	if err != nil || resp.StatusCode != http.StatusOK || p.Addr().String() != taken.Addr().String() {
		t.Fatal(resp, err, p.Addr())
	}
	resp.Body.Close()
}

// TestRetire checks that a retired proxy serves open connections and asks their clients to use another
// one, and that it ends with its last stream however short DrainTimeout is.
func TestRetire(t *testing.T) {
	t.Parallel()
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("http2 ", h2), func(t *testing.T) {
			t.Parallel() // it mostly waits
			c := newControl(t)
			v := twoStages([]*front{newFront(t, "r0"), newFront(t, "r1")})
			v.Settings.Listen = "127.0.0.1:0"
			c.set(v, nil)
			p := c.runProxy(t, Config{})
			<-p.Ready()
			url := "http://" + p.Addr().String()
			client := http.Client{Transport: transport(t, h2)}
			post := func(client http.Client, path string) *http.Response {
				t.Helper()
				resp, err := client.Post(url+path, "", bytes.NewReader(prompt("m", 100)))
				testkit.NoError(t, err)
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s answers %s", path, resp.Status)
				}
				return resp
			}
			idle := http.Client{Transport: transport(t, h2)}
			post(idle, "/sink").Body.Close()
			// The stream lasts longer than the drain timeout of one second.
			stream := post(client, "/sse?n=15&gap=100ms")
			p.Retire()
			p.Retire()
			resp := post(idle, "/sink")
			resp.Body.Close()
			if !h2 && !resp.Close {
				t.Error("the client is not asked to use another connection")
			}
			events, err := io.ReadAll(stream.Body)
			stream.Body.Close()
			if err != nil || strings.Count(string(events), "data:") != 16 {
				t.Errorf("the stream was cut: %v, %q", err, events)
			}
			client.CloseIdleConnections() // over HTTP/1 the stream's is in use until then
			testkit.WaitFor(t, "the closed socket", func() bool { return p.Addr() == nil })
		})
	}
}

// TestRetiredConnections checks that a retired proxy answers the request that a client sends on a connection long
// idle, that it ends five seconds after its last HTTP/1 connection, and that an idle one lasts ten minutes.
func TestRetiredConnections(t *testing.T) {
	for name, do := range map[string]func(t *testing.T, p *pipes) (left time.Duration){
		"none": func(*testing.T, *pipes) time.Duration { return 5 * time.Second },
		"used": func(t *testing.T, p *pipes) time.Duration {
			for _, c := range p.ends {
				time.Sleep(4 * time.Minute)
				if resp := requireAnswer(t, c, question); !resp.Close {
					t.Error("the client is not asked to use another connection")
				}
				requireClosed(t, c, 0)
			}
			return 5 * time.Second
		},
		"closed by its client": func(t *testing.T, p *pipes) time.Duration {
			for _, c := range p.ends {
				time.Sleep(4 * time.Minute)
				c.Close()
			}
			return time.Second
		},
		"kept by its client": func(t *testing.T, p *pipes) time.Duration {
			time.Sleep(9 * time.Minute)
			requireAnswer(t, p.ends[0], question)
			return 10 * time.Minute
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := &pipes{PipeListener: testkit.NewPipeListener(netip.MustParseAddrPort("127.0.0.1:1"))}
				p := testkit.Must(New(Config{Client: routing.Config{Target: "127.0.0.1:1", NodeID: "proxy"}, Listener: lis}))
				p.apply(&resources.Routing{Proxy: resources.ProxySettings{IdleTimeout: time.Minute, BodyLimit: 1 << 20}})
				ended := make(chan time.Time, 1)
				go func() { p.listen(t.Context()); ended <- time.Now() }()
				if name != "none" {
					requireAnswer(t, lis.dial(), question)
					lis.dial() // ahead of its first request
				}
				<-p.Ready()
				p.Retire()
				left := do(t, lis)
				last := time.Now()
				if took := (<-ended).Sub(last); took < left-time.Second || took > left+time.Second {
					t.Errorf("the proxy ended %v after the last connection or request, want %v", took, left)
				}
			})
		})
	}
}

// TestAwaitQuiet checks that a retired proxy keeps its connections while requests come or run,
// and long enough for clients that a busy machine holds up.
func TestAwaitQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Proxy
		began := time.Now()
		ended := make(chan time.Duration, 1)
		go func() {
			p.awaitQuiet(t.Context(), func() int { return 0 })
			ended <- time.Since(began)
		}()
		request := func(at, length time.Duration) {
			time.Sleep(at - time.Since(began))
			p.begun.Add(1)
			p.active.Add(1)
			time.Sleep(length)
			p.active.Add(-1)
		}
		request(4900*time.Millisecond, time.Millisecond) // begins and ends between two checks
		request(9700*time.Millisecond, 20*time.Second)
		if got, want := <-ended, 34500*time.Millisecond; got != want {
			t.Errorf("connections are closed %v after the hand-over, want %v: at the tenth check after the last request", got, want)
		}
	})
}

// FuzzTrustBoundary checks that every header that controls routing is removed, in any
// spelling.
func FuzzTrustBoundary(f *testing.F) {
	f.Add("x-cascade-tokens", "5", "Connection", "x-cascade-tokens")
	f.Add("X-CASCADE-Stage", "1", "X-Gateway-Model-Name", "m")
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2 string) {
		r := &http.Request{Header: http.Header{}, RemoteAddr: "127.0.0.1:1"}
		r.Header.Add(n1, v1)
		r.Header.Add(n2, v2)
		h := upstreamHeader(r)
		addForwardedHeaders(h, r)
		for name := range h {
			if low := strings.ToLower(name); strings.HasPrefix(low, "x-cascade-") || low == "x-gateway-model-name" {
				t.Errorf("%q got through", name)
			}
			if hopByHop(name) && name != "Te" {
				t.Errorf("%q was passed on", name)
			}
		}
	})
}
