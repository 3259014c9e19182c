package publish_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// ways are the two ways to attach to an Envoy.
var ways = map[string]func(attach.Config) (*attach.EnvoyConfig, error){"whole": attach.WholeListener, "internal listener": attach.InternalListener}

// TestSplit has an Envoy whose listeners and clusters come from its owner
// follow the plans of a control plane on streams per type.
func TestSplit(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			backends := startBackends(t, "a", "b", "c", "d", "shop")
			p, w := startServices(t, "")
			p.publisher.Submit(backendView(backends, 1, []policies.Tokens{1000, 5000}, "a b", "c", "d"))
			h := testkit.Must(way(attach.Config{Control: []string{p.address}, EstimatorFilter: true}))
			o := startOwnedEnvoy(t, h, backends["shop"])
			testFirstRequests(t, o)
			testRanges(t, o)
			if name == "whole" {
				testTokens(t, o)
			}
			for range 10 {
				if replica, stage, err := o.rest.post(100); err != nil || replica != "shop" || stage != "" {
					t.Errorf("owner's own host: served by %q, stage %q, %v", replica, stage, err)
				}
			}
			testSlot(t, w, o)
			last := testBoundaries(t, p, w, backends, o)
			w.mu.Lock()
			if w.tables < int(last)-10 || w.early > 0 {
				t.Errorf("%d of %d route tables sent before their endpoints were acknowledged", w.early, w.tables)
			}
			w.mu.Unlock()
			testReturn(t, p, backends, o, last)
		})
	}
}

// testFirstRequests sends the first requests to clusters that Envoy does not
// have yet, all at once.
func testFirstRequests(t *testing.T, o *ownedEnvoy) {
	t.Helper()
	if n := len(o.Stats(`^cluster\.cascade/m/.*membership_total`)); n != 0 {
		t.Errorf("%d stage clusters before the first request", n)
	}
	var wg sync.WaitGroup
	start := time.Now()
	for range 20 {
		wg.Go(func() {
			if _, stage, err := o.llm.post(220 << 10); err != nil || stage != "s2" {
				t.Errorf("first request: stage %q, %v", stage, err)
			}
		})
	}
	wg.Wait()
	t.Logf("20 first requests of 220 KiB after %v", time.Since(start).Round(time.Millisecond))
}

// testRanges checks the stages by the size of the body, at four bytes a token,
// and that forged headers are ignored.
func testRanges(t *testing.T, o *ownedEnvoy) {
	t.Helper()
	for bytes, want := range map[int]string{
		1: "s0", 999 * 4: "s0", 1000*4 - 1: "s0", 1000 * 4: "s1", 5000*4 - 1: "s1", 5000 * 4: "s2",
	} {
		for _, forged := range [][]string{nil, {length.TokensHeader, "5", length.ModelHeader, "m"}} {
			if _, stage, err := o.llm.post(bytes, forged...); err != nil || stage != want {
				t.Errorf("%d bytes: stage %q, %v, want %s", bytes, stage, err, want)
			}
		}
	}
}

// testTokens checks the stages by the length that a filter of the owner has
// set.
func testTokens(t *testing.T, o *ownedEnvoy) {
	t.Helper()
	for tokens, want := range map[string]string{"0": "s0", "999": "s0", "1000": "s1", "4999": "s1", "5000": "s2", "9223372036854775807": "s2", "abc": "s2"} {
		req := testkit.Must(http.NewRequest("POST", o.llm.url, strings.NewReader("x")))
		req.Header.Set("x-test-tokens", tokens)
		resp, err := o.llm.http.Do(req)
		testkit.NoError(t, err)
		resp.Body.Close()
		if stage := resp.Header.Get(length.StageHeader); resp.StatusCode != 200 || stage != want {
			t.Errorf("%s tokens: %s, stage %q, want %s", tokens, resp.Status, stage, want)
		}
	}
}

// testSlot fills the slot of the owner's Envoy twice.
func testSlot(t *testing.T, w *orderRecorder, o *ownedEnvoy) {
	t.Helper()
	for _, word := range []string{"", "one", "two"} {
		if word != "" {
			w.cache.setEstimator(t, word)
		}
		start, got := time.Now(), ""
		testkit.WaitFor(t, "using the slot", func() bool {
			resp, err := o.llm.http.Get(o.llm.url)
			testkit.NoError(t, err)
			resp.Body.Close()
			got = resp.Header.Get("x-slot")
			return got == word
		})
		t.Logf("slot %q after %v", word, time.Since(start).Round(time.Millisecond))
	}
}

// testBoundaries changes boundaries and stages under load and returns the last
// epoch, whose boundary is 1,000 tokens above it.
func testBoundaries(t *testing.T, p *controlPlane, w *orderRecorder, backends map[string]*backend, o *ownedEnvoy) policies.Epoch {
	t.Helper()
	p.waitForCurrent(t, 1, 1)
	stop := startLoad(t, o.llm)
	var boundaries []time.Duration
	calm := policies.Epoch(2 + testkit.Size(12, 40))
	for e := policies.Epoch(2); e < calm; e++ {
		stages, cuts := []string{"a b", "c", "d"}, []policies.Tokens{1000 + policies.Tokens(e), 5000}
		switch e % 4 {
		case 1:
			stages = []string{"a", "b c", "d"}
		case 2:
			stages, cuts = []string{"a b", "c d"}, cuts[:1]
		case 3:
			stages, cuts = []string{"a", "b", "c", "d"}, append(cuts, 9000) // a stage without a request so far
		}
		p.publisher.Submit(backendView(backends, e, cuts, stages...))
		p.waitForCurrent(t, e, 1)
	}
	served := stop()
	p.publisher.Submit(backendView(backends, calm, []policies.Tokens{1000, 5000}, "a b", "c", "d"))
	p.waitForCurrent(t, calm, 1)
	sent := p.sent.Load()
	last := calm + policies.Epoch(testkit.Size(6, 20))
	for e := calm + 1; e <= last; e++ {
		start := time.Now()
		p.publisher.Submit(backendView(backends, e, []policies.Tokens{1000 + policies.Tokens(e), 5000}, "a b", "c", "d"))
		p.waitForCurrent(t, e, 1)
		w.mu.Lock()
		boundaries = append(boundaries, w.acked.Sub(start))
		w.mu.Unlock()
	}
	if n := p.sent.Load() - sent; n != int64(len(boundaries)) {
		t.Errorf("%d resources sent for %d boundaries", n, len(boundaries))
	}
	slices.Sort(boundaries)
	t.Logf("%d plans with %d requests; boundary to ACK: median %v, worst %v", calm-2, served, boundaries[len(boundaries)/2], boundaries[len(boundaries)-1])
	at := 4 * int(1000+last)
	if replica, stage, err := o.llm.post(at - 1); err != nil || stage != "s0" {
		t.Errorf("below the last boundary: %q of %q, %v", replica, stage, err)
	}
	if replica, _, err := o.llm.post(at); err != nil || replica != "c" {
		t.Errorf("at the last boundary: %q, %v", replica, err)
	}
	return last
}

// testReturn stops the control plane and starts it again.
func testReturn(t *testing.T, p *controlPlane, backends map[string]*backend, o *ownedEnvoy, last policies.Epoch) {
	t.Helper()
	p.stop()
	for range 20 {
		if replica, _, err := o.llm.post(4 * int(1000+last)); err != nil || replica != "c" {
			t.Errorf("without a control plane: %q, %v", replica, err)
		}
	}
	again, _ := startServices(t, p.address)
	start := time.Now()
	again.publisher.Submit(backendView(backends, last, []policies.Tokens{1000 + policies.Tokens(last), 5000}, "a b", "c", "d"))
	again.waitForCurrent(t, last, 1)
	took := time.Since(start)
	// There is a stream for each source: the route table, the clusters, and the
	// endpoints of each stage. All of them reconnect, and no resource is sent.
	testkit.WaitFor(t, "reconnected on all streams", func() bool {
		return o.Stats(`^cluster\.cascade-xds\.upstream_rq_active`)["cluster.cascade-xds.upstream_rq_active"] >= 4
	})
	if n := again.sent.Load(); n != 0 {
		t.Errorf("%d resources sent again", n)
	}
	again.publisher.Submit(backendView(backends, last+1, []policies.Tokens{1100, 5000}, "a b", "c", "d"))
	again.waitForCurrent(t, last+1, 1)
	if n := again.sent.Load(); n != 1 {
		t.Errorf("%d resources for a new boundary, want 1", n)
	}
	t.Logf("reconnected after %v", took.Round(time.Millisecond))
	if _, stage, err := o.llm.post(1100*4 - 1); err != nil || stage != "s0" {
		t.Errorf("stage %q, %v", stage, err)
	}
}

// TestSplitWithoutControl starts the owner's Envoy without a control plane: its
// other traffic is served, and requests for Cascade are refused or served by
// the fallback, but never answered with "not found".
func TestSplitWithoutControl(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			backends := startBackends(t, "a", "b", "shop", "fallback")
			address := testkit.Addresses(t, 1)[0]
			c := attach.Config{Control: []string{address}, FetchTimeout: 300 * time.Millisecond}
			if name == "internal listener" {
				c.Fallback = "spare"
			}
			h := testkit.Must(way(c))
			if name == "internal listener" {
				h.Clusters = append(h.Clusters, ownCluster(t, "spare", backends["fallback"].address))
			}
			o := startOwnedEnvoy(t, h, backends["shop"])
			var fallen atomic.Uint64
			post := func(tokens int) (string, error) {
				replica, _, err := o.llm.post(tokens)
				if replica == "fallback" {
					fallen.Add(1)
				}
				return replica, err
			}
			counted := func(when string) { // the owner's Envoy counts what the fallback serves
				t.Helper()
				if got := string(o.Get("/stats?filter=^" + attach.FallbackStat + "$")); got != fmt.Sprintf("%s: %d\n", attach.FallbackStat, fallen.Load()) {
					t.Errorf("%s: Envoy's stats have %q; the fallback served %d", when, got, fallen.Load())
				}
			}
			if replica, _, err := o.rest.post(100); err != nil || replica != "shop" {
				t.Errorf("owner's own host: %q, %v", replica, err)
			}
			if name == "whole" {
				resp, err := o.llm.http.Get(o.llm.url)
				testkit.NoError(t, err)
				resp.Body.Close()
				if resp.StatusCode != 503 || resp.Header.Get(attach.UnroutedHeader) != "1" || resp.Header.Get("retry-after") == "" {
					t.Errorf("without a control plane: %s, %v", resp.Status, resp.Header)
				}
			} else {
				var wg sync.WaitGroup
				for i := range 40 {
					wg.Go(func() {
						if replica, err := post(1 + i*100000); err != nil || replica != "fallback" {
							t.Errorf("without a control plane: %d bytes: %q, %v", 1+i*100000, replica, err)
						}
					})
				}
				wg.Wait()
				counted("without a control plane")
			}
			p, _ := startServices(t, address)
			p.publisher.Submit(backendView(backends, 1, []policies.Tokens{1000}, "a", "b"))
			start := time.Now()
			testkit.WaitFor(t, "served by Cascade", func() bool {
				replica, err := post(10)
				return err == nil && replica == "a"
			})
			t.Logf("served by Cascade %v after its start", time.Since(start).Round(time.Millisecond))
			if name == "whole" {
				return
			}
			counted("served by Cascade")
			// The control plane stops before the first request for a stage.
			p.stop()
			if replica, err := post(4000); err != nil || replica != "fallback" {
				t.Errorf("unknown stage: %q, %v", replica, err)
			}
			if replica, err := post(10); err != nil || replica != "a" {
				t.Errorf("known stage: %q, %v", replica, err)
			}
			// No replica of the fleet is left.
			backends["a"].kill()
			backends["b"].kill()
			for range 20 {
				if replica, err := post(10); err != nil || replica != "fallback" {
					t.Errorf("without replicas: %q, %v", replica, err)
				}
			}
			backends["a"] = startBackend(t, "a", backends["a"].address)
			counted("without replicas")
			testkit.WaitFor(t, "served by Cascade again", func() bool {
				replica, err := post(10)
				return err == nil && replica == "a"
			})
		})
	}
}
