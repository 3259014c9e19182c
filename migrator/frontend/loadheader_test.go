package frontend

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestLoadHeader checks that answers report the share of the KV cache that the
// server counts, and nothing that an engine reports about itself.
func TestLoadHeader(t *testing.T) {
	runServer(t, func(c *Config) { c.KVTokens = 100 }, func(t *testing.T, e *engine, f *testServer) {
		f.updateLoadHeader() // before the timer does
		ask := func(path string) string {
			t.Helper()
			resp := testkit.Must(f.client.Post("http://"+f.url+path, "application/json", strings.NewReader(`{"prompt":"x","messages":[],"max_tokens":3}`)))
			resp.Body.Close()
			if n := len(resp.Header[loadHeader]); n != 1 {
				t.Errorf("%s: %d fields", path, n)
			}
			return resp.Header.Get(loadHeader)
		}
		const idle = "TEXT named_metrics.kv_cache_usage_perc=0.0000,named_metrics.num_requests_running=0,named_metrics.num_requests_waiting=0"
		e.set(nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(loadHeader, "TEXT named_metrics.kv_cache_usage_perc=9")
			fmt.Fprint(w, "{}")
		})
		for _, path := range []string{"/v1/completions", "/v1/embeddings"} {
			if got := ask(path); got != idle {
				t.Errorf("%s: %q", path, got)
			}
		}
		// A request in progress is counted, and so is its client.
		held := make(chan struct{})
		e.set(func(i int, r *http.Request) {
			if i == 1 {
				<-held
			}
		}, nil)
		resp := testkit.Must(f.client.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"0123456789abcdef","max_tokens":9,"stream":true}`)))
		defer resp.Body.Close()
		waitFor(t, func() bool {
			f.updateLoadHeader()
			text := f.loadHeader.Load()
			return strings.Contains(*text, "num_requests_running=1") && !strings.Contains(*text, "perc=0.0000") && f.ClientRequests() == 1
		})
		close(held)
		resp.Body.Close()
		waitFor(t, func() bool { return f.ClientRequests() == 0 })
	})
}
