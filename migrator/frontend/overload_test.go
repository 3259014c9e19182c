package frontend

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
	"github.com/cascadeinfer/cascade/policies/length"
)

// busyEngine makes a server's engine one whose KV cache has room for about three requests of the
// tests, and whose tokens take long.
func busyEngine(c *Config) {
	c.KVTokens, c.Cost = 300, policies.Cost{D0: 0.1, D2: 0.0001}
}

const busyRequest = `{"model":"m","prompt":"once upon a time there was a replica","max_tokens":90,"stream":true}`

// overloadEngine makes a server count more work than any engine can have.
func (srv *testServer) overloadEngine() {
	srv.admission.mu.Lock()
	defer srv.admission.mu.Unlock()
	srv.admission.ledger.Decider = admission.Decider{Cost: policies.Cost{D0: 0.1}, Capacity: 300}
	srv.admission.ledger.Admit(admission.Arrival{Input: 1 << 30, MaxOutput: 100, Admitted: true})
}

// fill starts streams of a tenant until the server refuses one, and returns its answer and how many
// were admitted. No stream ends before the test.
func fill(t *testing.T, srv *testServer, tenant string) (refused *http.Response, admitted int) {
	t.Helper()
	for ; admitted < 200; admitted++ {
		req := jsonRequest(srv.url, "/v1/completions", busyRequest, "X-Tenant", tenant).WithContext(t.Context())
		resp := testkit.Must(srv.client.Do(req))
		if resp.StatusCode != http.StatusOK {
			t.Cleanup(func() { resp.Body.Close() })
			return resp, admitted
		}
		go func() {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}()
	}
	t.Fatal("nothing is refused")
	return nil, 0
}

// TestOverloadRefuses checks that a replica that has more than it can serve in time refuses a
// request with 429 and a time to come back, says so in a way that proxies do not retry, and serves
// what it has admitted.
func TestOverloadRefuses(t *testing.T) {
	runServer(t, busyEngine, func(t *testing.T, e *engine, srv *testServer) {
		proceed := e.blockAt(1)
		refused, n := fill(t, srv, "")
		if n < 3 {
			t.Errorf("only %d requests were admitted", n)
		}
		body, _ := io.ReadAll(refused.Body)
		if refused.StatusCode != 429 || refused.Header.Get("Retry-After") == "" || refused.Header.Get(length.RefusedHeader) != "" || !strings.Contains(string(body), "overloaded") {
			t.Errorf("refused with %s %v: %s", refused.Status, refused.Header, body)
		}
		if srv.Status().TurnedAway != 1 {
			t.Errorf("%d clients were turned away, want 1", srv.Status().TurnedAway)
		}
		if srv.Status().Refused != 1 || srv.Status().Load.Running != n {
			t.Errorf("%d refusals are counted, %d requests run, want %d", srv.Status().Refused, srv.Status().Load.Running, n)
		}
		close(proceed)
		waitFor(t, func() bool { return len(srv.LocalLegs()) == 0 })
		w := srv.admission.ledger.Work()
		if tenants, weights := srv.admission.ledger.Demand(); w.Requests != 0 || w.Demand != 0 || w.Waiting != 0 || len(tenants) != 0 || weights != 0 {
			t.Errorf("an idle engine still has %+v", w)
		}
	})
}

// TestOverloadOff checks that every request is admitted if the operator wants that.
func TestOverloadOff(t *testing.T) {
	runServer(t, func(c *Config) { busyEngine(c); c.Overload.Off = true }, func(t *testing.T, e *engine, srv *testServer) {
		proceed := e.blockAt(1)
		for range 50 {
			resp, err := srv.client.Post("http://"+srv.url+"/v1/completions", "application/json", strings.NewReader(busyRequest))
			if err != nil || resp.StatusCode != http.StatusOK {
				t.Fatal(resp, err)
			}
			defer resp.Body.Close()
		}
		close(proceed)
	})
}

// TestOverloadSharesByTenant checks that a tenant that has filled a replica is refused while another
// one still is admitted, and that a lower priority is refused sooner.
func TestOverloadSharesByTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		admit := func(name string) (first, second int) {
			e := newEngine(t)
			proceed := e.blockAt(1)
			srv := startServer(t, e.URL, func(c *Config) {
				busyEngine(c)
				c.Overload.TenantHeader, c.Overload.Tenants = "X-Tenant", map[string]admission.Tenant{"batch": {Level: 3}}
			})
			_, first = fill(t, srv, name)
			_, second = fill(t, srv, "other")
			close(proceed)
			waitFor(t, func() bool { return len(srv.LocalLegs()) == 0 })
			return first, second
		}
		alone, other := admit("loud")
		if other < 1 {
			t.Errorf("a tenant that filled the replica with %d requests leaves nothing to another one", alone)
		}
		if batch, _ := admit("batch"); batch >= alone {
			t.Errorf("priority 3 got %d requests admitted, priority 0 %d", batch, alone)
		}
	})
}

// TestOverloadedPeer checks that a request which a busy replica does not take runs at a peer that
// has room, and that running requests may still migrate to a busy replica.
func TestOverloadedPeer(t *testing.T) {
	runFleet(t, 3, func(t *testing.T, f *fleet) {
		f.rescuer.setTargets()
		for _, e := range f.engines {
			e.blockAt(6)
		}
		_, n := fill(t, f.testServer, "")
		if n > 60 {
			t.Errorf("%d requests were admitted", n)
		}
		f.rescuer.setTargets(f.target(1))
		_, more := fill(t, f.testServer, "")
		if at := len(f.servers[1].LocalLegs()); at != more || more < 3 {
			t.Errorf("%d requests were admitted and %d run at the peer", more, at)
		}
		stream := f.LocalLegs()[0].Request.ID
		waitFor(t, func() bool { _, leg, ok := f.findLeg(stream); return ok && leg.Request.Output > 4 })
		f.servers[2].overloadEngine()
		for _, e := range f.engines {
			e.set(nil, nil)
		}
		if _, err := f.migrateLive(t.Context(), stream, 2, nil); err != nil {
			t.Errorf("a running request was not taken over: %v", err)
		}
	}, rescues, configured(busyEngine))
}

// TestOverloadTenantOfPeersLegs checks that a replica counts a leg for the tenant of the client's
// request, also if another front end has sent it on, or a stream goes on there.
func TestOverloadTenantOfPeersLegs(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *fleet){
		"first": func(*testing.T, *fleet) {},
		"later": func(t *testing.T, f *fleet) {
			waitFor(t, func() bool { legs := f.LocalLegs(); return len(legs) == 1 && legs[0].Request.Output > 4 })
			f.engines[0].killAll()
		},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f := newFleet(t, 2, rescues, configured(func(c *Config) { c.Overload.TenantHeader = "X-Tenant" }))
			f.rescuer.setTargets(f.target(1))
			if name == "first" {
				f.overloadEngine()
			}
			for _, e := range f.engines {
				defer close(e.blockAt(6))
			}
			go tryDo(f.client, jsonRequest(f.url, "/v1/completions", busyRequest, "X-Tenant", "loud"))
			leave(t, f)
			waitFor(t, func() bool { return len(f.servers[1].LocalLegs()) == 1 })
			at := f.servers[1].admission
			at.mu.Lock()
			defer at.mu.Unlock()
			if tenants, _ := at.ledger.Demand(); tenants["loud"] == 0 || len(tenants) != 1 {
				t.Errorf("the peer's tenants are %v", tenants)
			}
		})
	}
}

// TestOverloadedPlacement checks that a request which was placed at a peer runs at the own engine if
// the peer does not take it.
func TestOverloadedPlacement(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.placers[0].sendTo(f.target(1))
		f.servers[1].overloadEngine()
		a, b := f.engines[0], f.engines[1]
		resp, answer := f.post("/v1/completions", busyRequest)
		if resp.StatusCode != http.StatusOK || a.calls.Load() != 1 || b.calls.Load() != 0 {
			t.Errorf("%s after %d calls of the own engine and %d of the peer's: %s", resp.Status, a.calls.Load(), b.calls.Load(), answer)
		}
		f.overloadEngine()
		if resp, answer = f.post("/v1/completions", busyRequest); resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("both are overloaded: %s: %s", resp.Status, answer)
		}
	}, places)
}

// TestSequencesAreAdmitted sends requests that make the engine generate several sequences: each counts as all of
// them, so that a busy replica admits as many sequences as of requests for one.
func TestSequencesAreAdmitted(t *testing.T) {
	const prompt = "once upon a time there was a replica"
	list := strings.Repeat(`"`+prompt+`",`, 3) + `"` + prompt + `"`
	for name, c := range map[string]struct {
		path, body string
		tokens     policies.Tokens // that one request counts as, about
	}{
		"n":                 {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","n":4,"max_tokens":90,"stream":true}`, 370},
		"a later n":         {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","n":1,"n":4,"max_tokens":90,"stream":true}`, 370},
		"best_of":           {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","best_of":4,"max_tokens":90,"stream":true}`, 370},
		"beam search":       {"/v1/completions", `{"model":"m","prompt":"` + prompt + `","use_beam_search":true,"n":4,"max_tokens":90,"stream":true}`, 370},
		"prompts":           {"/v1/completions", `{"model":"m","prompt":[` + list + `],"max_tokens":90,"stream":true}`, 396},
		"prompts, each n":   {"/v1/completions", `{"model":"m","prompt":["` + prompt + `","` + prompt + `"],"n":2,"max_tokens":90,"stream":true}`, 378},
		"prompts as ids":    {"/v1/completions", `{"model":"m","prompt":[` + strings.Repeat("[1,2,3,4,5,6,7,8,9],", 3) + `[1,2,3,4,5,6,7,8,9]],"max_tokens":90,"stream":true}`, 396},
		"n of chats":        {"/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"` + prompt + `"}],"n":4,"max_tokens":90,"stream":true}`, 375},
		"responses":         {"/v1/responses", `{"model":"m","input":"` + prompt + `","max_output_tokens":100}`, 109},
		"lists to embed":    {"/v1/embeddings", `{"model":"m","input":["` + strings.Repeat("x", 1600) + `","` + strings.Repeat("x", 1600) + `"]}`, 802},
		"documents to rank": {"/v1/rerank", `{"model":"m","query":"` + strings.Repeat("x", 400) + `","documents":["a","b","c","d"]}`, 418},
	} {
		t.Run(name, func(t *testing.T) {
			runServer(t, busyEngine, func(t *testing.T, e *engine, srv *testServer) {
				proceed := e.blockAt(1)
				e.pass(func(http.ResponseWriter, *http.Request) { <-proceed })
				admitted := 0
				for ; admitted < 20; admitted++ {
					answer := srv.call("POST", c.path, c.body)
					if synctest.Wait(); len(answer) > 0 && strings.HasPrefix(<-answer, "429 ") {
						break // else the engine has it
					}
				}
				// The replica admits about 1600 tokens.
				if admitted == 0 || policies.Tokens(admitted) > 3300/c.tokens {
					t.Errorf("%d requests of %d tokens are admitted", admitted, c.tokens)
				}
				srv.admission.mu.Lock()
				each := srv.admission.ledger.Work().Demand / policies.Tokens(max(admitted, 1))
				if each < c.tokens*9/10 || each > c.tokens*11/10 {
					t.Errorf("a request counts as %d tokens, want %d", each, c.tokens)
				}
				srv.admission.mu.Unlock()
				close(proceed)
				waitFor(t, func() bool { return srv.Status().Load.Running+srv.Status().Load.Waiting == 0 })
			})
		})
	}
}

// TestLocalFaultIsNotTheEngines: a front end that can open no connection keeps its
// engine and its streams, and refuses new requests until it can.
func TestLocalFaultIsNotTheEngines(t *testing.T) {
	for _, fault := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.EADDRNOTAVAIL} {
		runInBubble(t, fault.Error(), func(t *testing.T) {
			f := newFleet(t, 2, rescues)
			f.setPace(20 * time.Millisecond)
			s := f.startStream(longRequest)
			restore := memory.failDials(f.engines[0].URL, fault)
			defer restore()
			for range 10 {
				f.local.CloseIdleConnections()
				for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
					if got := <-f.call("POST", path, `{"model":"m","prompt":"x","input":"x","max_tokens":2}`); !strings.HasPrefix(got, "503 1 ") {
						t.Fatalf("a new request to %s is answered %s", path, got)
					}
				}
				time.Sleep(50 * time.Millisecond) // several health checks
				if !f.Status().EngineReady {
					t.Fatal("the engine counts as away")
				}
			}
			f.requireAnswer(s)
			if len(f.rescuer.asked) > 0 {
				t.Errorf("%d rescues", len(f.rescuer.asked))
			}
			restore()
			f.waitForReady(true)
			if resp, _ := f.post("/v1/completions", `{"model":"m","prompt":"x","max_tokens":2}`); resp.StatusCode != 200 {
				t.Errorf("afterwards a request is answered %d", resp.StatusCode)
			}
		})
	}
}

// TestRescueWaitsForLocalFault: a stream that lost its engine waits until the front end
// can connect again, and uses up no attempt meanwhile.
func TestRescueWaitsForLocalFault(t *testing.T) {
	runFleet(t, 2, func(t *testing.T, f *fleet) {
		f.setPace(20 * time.Millisecond)
		s := f.startStream(longRequest)
		f.waitForStream(3)
		restore := memory.failDials(f.servers[1].peer, syscall.EMFILE)
		f.engines[0].killAll()
		time.Sleep(5 * time.Second)
		restore()
		f.requireRescuedAnswer(s)
		if len(f.rescuer.asked) != 1 {
			t.Errorf("%d replicas were tried", len(f.rescuer.asked))
		}
	}, rescues)
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
				resp, _ := f.post(path, `{"model":"m","prompt":"x","max_tokens":2}`)
				refused := resp.StatusCode == 503 && resp.Header.Get(length.RefusedHeader) != "" && resp.Close
				if refused != state || !state && resp.StatusCode != 200 {
					t.Errorf("full %v: %s is answered %d %v", state, path, resp.StatusCode, resp.Header)
				}
			}
			resp, _ := do(t, f.client, jsonRequest(f.peer, "/v1/completions", "{}", ForwardHeader, "r1"))
			if (resp.StatusCode == 503) != state {
				t.Errorf("full %v: a peer's leg is answered %d", state, resp.StatusCode)
			}
		}
	})
}
