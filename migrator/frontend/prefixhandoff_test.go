package frontend

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// prefixFleet returns a fleet of two replicas whose engines have KV connectors; r1 holds 1,024 tokens of every
// prompt.
func prefixFleet(t *testing.T, change func(*Config)) (*fleet, *connector) {
	f := &prefixFake{held: 1024}
	w, c := newHandoffFleet(t, 3, func(c *Config) {
		f.pulls(c)
		if c.PrefixPull.Copier = nil; change != nil {
			change(c)
		}
	})
	f.holder = w.target(1)
	return w, c
}

// TestPrefixHandoff pulls by KV connectors: the holder's engine keeps the KV of exactly the prefix, the own one
// fetches it, and the request is answered as always. Whatever fails, it is answered, too.
func TestPrefixHandoff(t *testing.T) {
	for _, x := range []struct {
		name           string
		more           string // of the request
		config         func(*Config)
		change         func(w *fleet, c *connector)
		asked, fetched int64
		failed         string // the reason; "" for none
		left           bool   // the next request tries nothing
	}{
		{name: "handed over", asked: 1, fetched: 1},
		{name: "handoffs are off", config: func(c *Config) { c.Handoff = false }, left: true},
		{name: "a request for its engine only", more: `"response_format":{"type":"json_object"},`, failed: "why"},
		{name: "the holder has no connector", change: func(w *fleet, c *connector) { w.engines[1].connector = nil }, failed: "why", left: true},
		{name: "with ids of its own", change: func(w *fleet, c *connector) {
			c.lie = func(p string) string { return strings.Replace(p, `{`, `{"prompt_token_ids":[1],`, 1) }
		}, asked: 1, failed: "why"},
		{name: "the holder hangs", change: func(w *fleet, c *connector) { c.keeping = func(r *http.Request) { <-r.Context().Done() } }, asked: 1, failed: pullDeadline, left: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, c := prefixFleet(t, x.config)
				asked, fetched := c.asked.Load(), c.fetched.Load() // when the servers looked for connectors
				if x.change != nil {
					x.change(w, c)
				}
				_, body := promptOf(2000)
				body = "{" + x.more + body[1:]
				s, e := w.servers[0], w.engines[0]
				_, want := post(t, s.client, strings.TrimPrefix(e.URL, "http://"), "/v1/completions", body)
				defer within(t, 1200*time.Millisecond)()
				resp, got := post(t, s.client, s.url, "/v1/completions", body)
				if resp.StatusCode != http.StatusOK || withoutIDs(got) != withoutIDs(want) {
					t.Errorf("%s %s, want %s", resp.Status, got, want)
				}
				n := s.PrefixPulls()
				if x.failed == "" && x.asked > 0 && (n.Pulled != 1 || n.Tokens != 1024) || x.failed != "" && (n.Pulled != 0 || n.Failed[x.failed] != 1) {
					t.Errorf("%+v", n)
				}
				if a, b := c.asked.Load()-asked, c.fetched.Load()-fetched; a != x.asked || b != x.fetched {
					t.Errorf("%d engines were asked to keep KV, %d to fetch it", a, b)
				}
				if x.left {
					post(t, s.client, s.url, "/v1/completions", body)
					if again := s.PrefixPulls(); !reflect.DeepEqual(again, n) || c.asked.Load()-asked != x.asked || c.fetched.Load()-fetched != x.fetched {
						t.Errorf("the next request makes %+v of %+v", again, n)
					}
				}
			})
		})
	}
}

// An engine that may have fetched the prefix after the holder's lease is not believed: the request begins at another
// replica. One that has fetched it in time may take longer than the lease for the first token.
func TestPrefixHandoffTooLate(t *testing.T) {
	for _, late := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			r := &rescuer{}
			w, c := prefixFleet(t, func(c *Config) {
				c.Rescuer = r
				c.Cost.D2 = 0.1 // the prefix would take 102 s: handoff.Deadline counts
				c.PrefixPull.TokenBytes = 1
			})
			r.targets = []policies.Target{w.target(0), w.target(2)}
			if late {
				c.fetching = func(q *http.Request) { <-q.Context().Done() }
			}
			hold := make(chan struct{})
			w.engines[0].set(func(n int, q *http.Request) { // not the request that fetches
				if n == 0 && q.Header.Get(LegHeader) != "" {
					<-hold
				}
			}, nil)
			_, body := promptOf(2000)
			s := w.servers[0]
			answered := make(chan string)
			go func() {
				resp, got := tryPost(t, s.client, s.url, "/v1/completions", body)
				answered <- fmt.Sprint(resp.StatusCode, got[:0])
			}()
			time.Sleep(31 * time.Second)
			calls := w.engines[2].calls.Load()
			close(hold)
			if got := <-answered; got != "200" {
				t.Error(got)
			}
			if elsewhere := w.engines[2].calls.Load() > calls; elsewhere != late {
				t.Errorf("fetched too late: %v; the request began at another replica: %v", late, elsewhere)
			}
		})
	}
}
