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
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

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

// TestColdStart starts a fleet that has not learnt a depth of prefix keys: prompts that begin with the same long
// instructions have no key, and are spread. When enough were seen, the turns of a conversation go to one front end. The
// fleet shows the secret of its keys nowhere.
func TestColdStart(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		state := t.TempDir()
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, control: keepReplicas, edit: func(f *config.Fleet) {
			f.Control.Estimator, f.State = "ext_proc", state
			f.Migration = config.Migration{Mode: config.MigrationPlace} // nothing but placement balances
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
		r.WaitFor("the turns of most conversations go to one front end, those of others to others", func() bool {
			homes, stay := make(map[string]bool), 0
			for range 12 {
				conversation++
				by := r.arrivals(func() {
					for turn := range 3 {
						r.sendKeyed(talk(6000, conversation, 40*turn, 1), "x-cascade-prefix", fmt.Sprintf("%016x", turn)) // which is ignored
					}
				})
				if len(by) == 1 {
					stay++
				}
				for id := range by {
					homes[id] = true
				}
			}
			return len(homes) == 3 && stay >= 10 // a busy host may miss a reply, and the proxy then asks another front end
		})
		if got := depth(); got != "8192" {
			t.Errorf("keys cover %s bytes", got)
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
