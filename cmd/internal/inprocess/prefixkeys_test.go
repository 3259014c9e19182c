package inprocess

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// keyed makes proxies give prefix keys of a depth; 0: one that is learnt.
func keyed(f *config.Fleet, depth int64) {
	f.Control.Estimator, f.Models[0].PrefixDepth = "ext_proc", depth
	f.Migration = config.Migration{Mode: config.MigrationPlace} // nothing but placement balances
}

// talk returns the body of a completion whose prompt begins with the first head bytes that all have, and goes on
// as those of the same conversation do.
func talk(head, conversation, more, output int) []byte {
	return fmt.Appendf(nil, `{"model":%q,"max_tokens":%d,"ignore_eos":true,"prompt":"%s%s %s"}`, llm, output, strings.Repeat("instructions ", head/13),
		strings.Repeat(fmt.Sprintf("conversation %d, ", conversation), 600), strings.Repeat("more ", more))
}

// sendKeyed sends a body through the data plane, with header fields, and fails the test if the request does.
func (r *fleetHarness) sendKeyed(body []byte, header ...string) {
	r.T.Helper()
	req := testkit.Must(http.NewRequestWithContext(r.T.Context(), http.MethodPost, r.DataPlane+"/v1/completions", bytes.NewReader(body)))
	req.Header.Set("content-type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	resp, err := r.HTTP.Do(req)
	testkit.NoError(r.T, err)
	defer resp.Body.Close()
	if text := testkit.Must(io.ReadAll(resp.Body)); resp.StatusCode != http.StatusOK {
		r.T.Fatalf("%s: %s", resp.Status, text)
	}
}

// arrivals returns how many requests each front end gets from the proxy while f sends some.
func (r *fleetHarness) arrivals(f func()) map[string]int64 {
	before := make(map[string]int64)
	for id, n := range r.placed {
		before[id] = n.Load()
	}
	f()
	out := make(map[string]int64)
	for id, n := range r.placed {
		if got := n.Load() - before[id]; got > 0 {
			out[id] = got
		}
	}
	return out
}

// TestHotPrefix starts streams of which half have one long prompt, and so one key: the proxy sends them all to one front
// end, which keeps no replica above the bound on its load, and no stream fails.
func TestHotPrefix(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		const replicas, each = 6, 24
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: replicas, control: keepReplicas, edit: func(f *config.Fleet) {
			keyed(f, 4096)
			computePrompts(f)
		}})
		r.waitUntilPlacing()
		var streams []*harness.Stream
		most := int64(0)
		for _, n := range r.arrivals(func() {
			for i := range each {
				streams = append(streams, r.Stream(talk(0, 0, 5000, forever)), r.Stream(talk(0, 1+i, 5000, forever)))
			}
		}) {
			most = max(most, n)
		}
		if most < each {
			t.Errorf("no front end got the %d requests with one key, but %d at most", each, most)
		}
		r.WaitForGrowth(streams)
		var sum, longest policies.Tokens
		held := make(map[string]policies.Tokens)
		for id, f := range r.fronts {
			l := f.Status().Load
			held[id] = l.Held + l.Promised
			sum += held[id]
			for _, leg := range f.LocalLegs() {
				longest = max(longest, leg.Request.Length())
			}
		}
		// Above the bound there is the request that was the last to begin below it, and one that the front end
		// placed before it knew of that.
		bound := 2*sum/replicas + 16384 + 2*longest
		for id, n := range held {
			if n > bound {
				t.Errorf("%s holds %d tokens, the bound is %d: %v", id, n, bound, held)
			}
		}
		if hot := each * longest; hot < bound {
			t.Errorf("the hot prompts have %d tokens, and the bound is %d: the test proves too little", hot, bound)
		}
		for _, s := range streams {
			s.Leave()
		}
	})
}

// TestColdStart starts a fleet that has not learnt a depth of prefix keys: prompts that begin with the same long
// instructions have no key, and are spread. When enough were seen, the turns of a conversation go to one front end.
func TestColdStart(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, control: keepReplicas, edit: func(f *config.Fleet) {
			keyed(f, 0)
			f.Planner.Period = time.Second
		}})
		conversation := 0
		if by := r.arrivals(func() {
			for range 30 {
				conversation++
				r.sendKeyed(talk(6000, conversation, 0, 1))
			}
		}); len(by) != 3 || min(by["r0"], by["r1"], by["r2"]) < 5 {
			t.Errorf("before a depth is learnt, front ends get %v", by)
		}
		depth := func() (line string) {
			for line = range strings.Lines(testkit.Must(r.Get(r.Admin + "/metrics"))) {
				if strings.HasPrefix(line, "cascade_prefix_depth_bytes{") {
					break
				}
			}
			return strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:])
		}
		if got := depth(); got != "0" {
			t.Errorf("after 30 requests keys cover %s bytes", got)
		}
		for range 50 {
			conversation++
			r.sendKeyed(talk(6000, conversation, 0, 1))
		}
		r.WaitFor("the turns of a conversation go to one front end, those of others to others", func() bool {
			homes := make(map[string]bool)
			for range 12 {
				conversation++
				by := r.arrivals(func() {
					for turn := range 3 {
						r.sendKeyed(talk(6000, conversation, 40*turn, 1))
					}
				})
				for id := range by {
					homes[id] = true
				}
				if len(by) != 1 {
					return false
				}
			}
			return len(homes) == 3
		})
		if got := depth(); got != "8192" {
			t.Errorf("keys cover %s bytes", got)
		}
	})
}

// TestForgedPrefix sends prefix keys that the client has made up: the proxy does not act on them, with or without a
// key of its own. The fleet shows the secret of its keys nowhere.
func TestForgedPrefix(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		state := t.TempDir()
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, control: keepReplicas, edit: func(f *config.Fleet) {
			keyed(f, 4096)
			f.State = state
		}})
		names := []string{"x-cascade-prefix", "X-Cascade-Prefix", "X-CASCADE-PREFIX"}
		if by := r.arrivals(func() {
			for i := range 30 {
				r.sendKeyed(harness.Prompt(i, 1000, 1), names[i%3], "0123456789abcdef")
			}
		}); len(by) != 3 || min(by["r0"], by["r1"], by["r2"]) < 5 {
			t.Errorf("short prompts with one forged key go to %v", by)
		}
		homes := make(map[string]bool)
		for conversation := range 12 {
			by := r.arrivals(func() {
				r.sendKeyed(talk(0, conversation, 0, 1))
				for i, name := range names {
					r.sendKeyed(talk(0, conversation, i, 1), name, fmt.Sprintf("%016x", conversation+i), name, "x")
				}
			})
			for id := range by {
				homes[id] = true
			}
			if len(by) != 1 {
				t.Errorf("conversation %d, with forged keys, goes to %v", conversation, by)
			}
		}
		if len(homes) < 2 {
			t.Errorf("12 conversations go to %v", homes)
		}

		text := string(bytes.TrimSpace(testkit.Must(os.ReadFile(filepath.Join(state, "secrets", "prefix-secret")))))
		secrets := []string{text, resources.Settings{PrefixSecret: testkit.Must(length.ParsePrefixSecret(text))}.Prefixes(llm, 4096).Secret.Hex()}
		for _, path := range []string{"/status", "/devices", "/migrations", "/plan/history?model=" + llm, "/policies", "/metrics", "/healthz", "/readyz"} {
			page, err := r.Get(r.Admin + path)
			if err != nil {
				t.Errorf("%s: %v", path, err)
			}
			for _, secret := range secrets {
				if strings.Contains(page, secret) {
					t.Errorf("%s shows a secret of prefix keys", path)
				}
			}
		}
	})
}
