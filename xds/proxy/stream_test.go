package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/routing"
)

func TestSSEFlushesEveryEvent(t *testing.T) {
	f := newFleet(t, 2, nil)
	for _, h2 := range []bool{false, true} {
		c := http.Client{Transport: transport(t, h2)}
		resp, err := c.Post(f.url+"/sse?n=3&gap=1h", "application/json", bytes.NewReader(prompt("m", 100)))
		testkit.NoError(t, err)
		if resp.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("header %v", resp.Header)
		}
		// The next event is sent in an hour, so an event that is read now was flushed.
		if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "data: 0\n" || err != nil {
			t.Errorf("http2 %v: %q, %v", h2, line, err)
		}
		resp.Body.Close()
	}
}

func transport(t testing.TB, http2 bool) *http.Transport {
	tr := &http.Transport{Protocols: new(http.Protocols), MaxIdleConnsPerHost: 1000, DisableCompression: true}
	tr.Protocols.SetHTTP1(!http2)
	tr.Protocols.SetUnencryptedHTTP2(http2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// TestCancel checks that the upstream request ends when its client disconnects.
func TestCancel(t *testing.T) {
	f := newFleet(t, 2, nil)
	for _, path := range []string{"/hang", "/sse?n=10&gap=1h"} {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "POST", f.url+path, bytes.NewReader(prompt("m", 100)))
		before := f.fronts[0].hits.Load()
		done := make(chan error)
		go func() {
			resp, err := f.client.Do(r)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			done <- err
		}()
		testkit.WaitFor(t, "the request", func() bool { return f.fronts[0].hits.Load() > before })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// Shutdown of the fronts in the cleanup waits for their handlers: those that were
	// not cancelled would leak, and goleak would report them.
	f.waitForNoRequests()
}

// TestRunningStreamsSurvive checks that running streams continue through every kind of
// update: a flip away from their stage, the removal of their replica, other settings.
func TestRunningStreamsSurvive(t *testing.T) {
	f := newFleet(t, 4, nil)
	resp, err := f.client.Post(f.url+"/sse?n=30&gap=10ms", "", bytes.NewReader(prompt("m", 100)))
	testkit.NoError(t, err)
	v := f.view
	v.Endpoints = v.Endpoints[2:]
	v.Plans = []policies.Plan{policies.OneStagePlan("m", []policies.ReplicaID{"r2", "r3"})}
	v.Settings.IdleTimeout = time.Hour
	f.publish(v, nil)
	if _, s := f.see("POST", "/", "", bytes.NewReader(prompt("m", 100))); stageOf(s.By) != 1 {
		t.Errorf("a new request went to %s, which is gone", s.By)
	}
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || strings.Count(string(b), "data:") != 31 {
		t.Errorf("the stream ended early: %v, %d events", err, strings.Count(string(b), "data:"))
	}
}

// TestFlips checks the contract of the package under load: boundaries and replicas
// change hundreds of times while POSTs and streams run, and no request fails.
func TestFlips(t *testing.T) {
	f := newFleet(t, 4, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var requests, failures atomic.Int64
	for i := range 8 {
		c := http.Client{Transport: transport(t, i%2 == 0)}
		load.Go(func() {
			sizes := []int{100, 3999, 4000, 30000}
			for n := i; ctx.Err() == nil; n++ {
				path := "/"
				if n%4 == 0 {
					path = "/sse?n=5&gap=1ms"
				}
				resp, err := c.Post(f.url+path, "application/json", bytes.NewReader(prompt("m", sizes[n%4])))
				requests.Add(1)
				if err != nil {
					failures.Add(1)
					t.Error(err)
					return
				}
				b, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 || resp.Header.Get("X-Cascade-Stage") == "" {
					failures.Add(1)
					t.Errorf("%d %v %s", resp.StatusCode, err, b)
					return
				}
			}
		})
	}
	flips := 300
	if testing.Short() {
		flips = 50
	}
	for i := range flips {
		v := f.view
		cut := policies.Tokens(500 + i)
		p := policies.Plan{Model: "m", Epoch: policies.Epoch(i + 2), Stages: []policies.Stage{
			{Low: 0, High: cut, Replicas: []policies.ReplicaID{"r0", "r1", "r2"}[:2+i%2]},
			{Low: cut, High: policies.Unbounded, Replicas: []policies.ReplicaID{"r2", "r3"}[i%2:]}}}
		v.Previous, v.Plans = v.Plans, []policies.Plan{p}
		f.view.Plans = v.Plans
		f.publish(v, nil)
	}
	cancel()
	load.Wait()
	t.Logf("%d flips under %d requests, %d failed", flips, requests.Load(), failures.Load())
}

// TestDrain checks that the proxy, when Run ends, lets streams finish and accepts no
// new ones.
func TestDrain(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.proxy.cfg.DrainTimeout = time.Minute // a busy machine may delay the streams
	for _, h2 := range []bool{false, true} {
		c := http.Client{Transport: transport(t, h2)}
		resp, err := c.Post(f.url+"/sse?n=20&gap=10ms", "", bytes.NewReader(prompt("m", 100)))
		testkit.NoError(t, err)
		defer resp.Body.Close()
		defer func() {
			b, err := io.ReadAll(resp.Body)
			if err != nil || !bytes.Contains(b, []byte("[DONE]")) {
				t.Errorf("http2 %v: the stream was cut: %v", h2, err)
			}
		}()
	}
	f.stop()
	if _, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://")); err == nil {
		t.Error("the proxy still accepts")
	}
}

// TestDrainTimeout checks that a stream that does not end in time is cut.
func TestDrainTimeout(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.proxy.cfg.DrainTimeout = 50 * time.Millisecond
	resp, err := f.client.Post(f.url+"/sse?n=2&gap=1h", "", bytes.NewReader(prompt("m", 100)))
	testkit.NoError(t, err)
	defer resp.Body.Close()
	f.stop()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the stream outlived the drain timeout")
	}
}

func TestConfigErrors(t *testing.T) {
	for name, c := range map[string]Config{
		"no target": {},
		"negative":  {Client: routing.Config{Target: "x", NodeID: "n"}, DrainTimeout: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: New accepted it", name)
		}
	}
}

// TestAllocations bounds the allocations of one request, without those of the client
// and the front.
func TestAllocations(t *testing.T) {
	testkit.SkipUnderRace(t)
	f := newFleet(t, 2, nil)
	c := http.Client{Transport: transport(t, false)}
	body := prompt("m", 1000)
	cost := func(url string) float64 {
		return testing.AllocsPerRun(300, func() {
			resp, err := c.Post(url+"/sink", "application/json", bytes.NewReader(body))
			testkit.NoError(t, err)
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		})
	}
	direct, through := cost("http://"+f.fronts[0].address), cost(f.url)
	t.Logf("%.0f allocations direct, %.0f through the proxy", direct, through)
	if through-direct > 160 {
		t.Errorf("the proxy adds %.0f allocations", through-direct)
	}
}
