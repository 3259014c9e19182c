package frontend

import (
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestLocalFaultIsNotTheEngines: a front end that can open no connection keeps its
// engine and its streams, and refuses new requests until it can.
func TestLocalFaultIsNotTheEngines(t *testing.T) {
	for _, fault := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL} {
		runInBubble(t, fault.Error(), func(t *testing.T) {
			f, r := newRescueFleet(t, 2, nil)
			f.setPace(20 * time.Millisecond)
			s := f.startRescuableStream()
			restore := memory.failDials(f.engines[0].URL, fault)
			defer restore()
			for range 10 {
				f.servers[0].local.CloseIdleConnections()
				resp, _ := post(t, f.servers[0].client, f.servers[0].url, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":2}`)
				if resp.StatusCode != 503 || resp.Header.Get(length.RefusedHeader) == "" {
					t.Fatalf("a new request is answered %d %v", resp.StatusCode, resp.Header)
				}
				resp, _ = post(t, f.servers[0].client, f.servers[0].url, "/v1/embeddings", `{"model":"m","input":"x"}`)
				if resp.StatusCode != 503 || resp.Header.Get(length.RefusedHeader) == "" {
					t.Fatalf("a new request that is passed through is answered %d %v", resp.StatusCode, resp.Header)
				}
				time.Sleep(50 * time.Millisecond) // several health checks
				if !f.servers[0].Status().EngineReady {
					t.Fatal("the engine counts as away")
				}
			}
			f.requireAnswer(s)
			if len(r.asked) > 0 {
				t.Errorf("%d rescues", len(r.asked))
			}
			restore()
			f.servers[0].waitForReady(t, true)
			if resp, _ := post(t, f.servers[0].client, f.servers[0].url, "/v1/completions", `{"model":"m","prompt":"x","max_tokens":2}`); resp.StatusCode != 200 {
				t.Errorf("afterwards a request is answered %d", resp.StatusCode)
			}
		})
	}
}

// TestRescueWaitsForLocalFault: a stream that lost its engine waits until the front end
// can connect again, and uses up no attempt meanwhile.
func TestRescueWaitsForLocalFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, r := newRescueFleet(t, 2, nil)
		f.setPace(20 * time.Millisecond)
		s := f.startRescuableStream()
		f.waitForStream(3)
		restore := memory.failDials(f.servers[1].peer, syscall.EMFILE)
		f.engines[0].killAll()
		time.Sleep(5 * time.Second)
		restore()
		f.requireRescuedAnswer(s)
		if len(r.asked) != 1 {
			t.Errorf("%d replicas were tried", len(r.asked))
		}
	})
}

// TestAdmit: a process without resources refuses clients' requests and peers' legs.
func TestAdmit(t *testing.T) {
	var full atomic.Bool
	admit := func() error {
		if full.Load() {
			return syscall.EMFILE
		}
		return nil
	}
	runServer(t, func(c *Config) { c.Admit = admit }, func(t *testing.T, e *engine, f *testServer) {
		for _, state := range []bool{false, true, false} {
			full.Store(state)
			for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
				resp, _ := post(t, f.client, f.url, path, `{"model":"m","prompt":"x","max_tokens":2}`)
				refused := resp.StatusCode == 503 && resp.Header.Get(length.RefusedHeader) != "" && resp.Close
				if refused != state || !state && resp.StatusCode != 200 {
					t.Errorf("full %v: %s is answered %d %v", state, path, resp.StatusCode, resp.Header)
				}
			}
			leg := jsonRequest(f.peer, "/v1/completions", "{}")
			leg.Header.Set(ForwardHeader, "r1")
			resp, err := f.client.Do(leg)
			testkit.NoError(t, err)
			if resp.Body.Close(); (resp.StatusCode == 503) != state {
				t.Errorf("full %v: a peer's leg is answered %d", state, resp.StatusCode)
			}
		}
	})
}
