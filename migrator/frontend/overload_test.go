package frontend

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

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
		req := testkit.Must(http.NewRequestWithContext(t.Context(), "POST", "http://"+srv.url+"/v1/completions", strings.NewReader(busyRequest)))
		req.Header.Set("X-Tenant", tenant)
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
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		proceed := e.blockAt(1)
		srv := startServer(t, e.URL, busyEngine)
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
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		srv := startServer(t, e.URL, func(c *Config) { busyEngine(c); c.Overload.Off = true })
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
	synctest.Test(t, func(t *testing.T) {
		f, r := newRescueFleet(t, 3, busyEngine)
		r.setTargets()
		for _, e := range f.engines {
			e.blockAt(6)
		}
		_, n := fill(t, f.servers[0], "")
		if n > 60 {
			t.Errorf("%d requests were admitted", n)
		}
		r.setTargets(f.target(1))
		_, more := fill(t, f.servers[0], "")
		if at := len(f.servers[1].LocalLegs()); at != more || more < 3 {
			t.Errorf("%d requests were admitted and %d run at the peer", more, at)
		}
		stream := f.servers[0].LocalLegs()[0].Request.ID
		waitFor(t, func() bool { _, leg, ok := f.findLeg(stream); return ok && leg.Request.Output > 4 })
		f.servers[2].overloadEngine()
		for _, e := range f.engines {
			e.set(nil, nil)
		}
		if _, err := f.migrateLive(t.Context(), stream, 2, nil); err != nil {
			t.Errorf("a running request was not taken over: %v", err)
		}
	})
}

// TestOverloadTenantOfPeersLegs checks that a replica counts a leg for the tenant of the client's
// request, also if another front end has sent it on, or a stream goes on there.
func TestOverloadTenantOfPeersLegs(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *fleet){
		"first": func(*testing.T, *fleet) {},
		"later": func(t *testing.T, f *fleet) {
			waitFor(t, func() bool { legs := f.servers[0].LocalLegs(); return len(legs) == 1 && legs[0].Request.Output > 4 })
			f.engines[0].killAll()
		},
	} {
		runInBubble(t, name, func(t *testing.T) {
			f, r := newRescueFleet(t, 2, func(c *Config) { c.Overload.TenantHeader = "X-Tenant" })
			r.setTargets(f.target(1))
			if name == "first" {
				f.servers[0].overloadEngine()
			}
			for _, e := range f.engines {
				defer close(e.blockAt(6))
			}
			req := jsonRequest(f.servers[0].url, "/v1/completions", busyRequest)
			req.Header.Set("X-Tenant", "loud")
			go func() {
				if resp, err := f.servers[0].client.Do(req); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}()
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
	synctest.Test(t, func(t *testing.T) {
		fa, fb, a, b, pa, _ := newForwardingPair(t)
		pa.peer.Store(&fb.peer)
		fb.overloadEngine()
		resp, answer := post(t, fa.client, fa.url, "/v1/completions", busyRequest)
		if resp.StatusCode != http.StatusOK || a.calls.Load() != 1 || b.calls.Load() != 0 {
			t.Errorf("%s after %d calls of the own engine and %d of the peer's: %s", resp.Status, a.calls.Load(), b.calls.Load(), answer)
		}
		fa.overloadEngine()
		if resp, answer = post(t, fa.client, fa.url, "/v1/completions", busyRequest); resp.StatusCode != http.StatusTooManyRequests {
			t.Errorf("both are overloaded: %s: %s", resp.Status, answer)
		}
	})
}
