package frontend

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestAnswersTellTheLoad: answers tell the share of the cache that the front
// counts, and nothing that an engine says of itself.
func TestAnswersTellTheLoad(t *testing.T) {
	e := newEngine(t)
	f := start(t, e.URL, func(c *Config) { c.KVTokens = 100 })
	f.updateLoadHeader() // as the sweep does, before it comes
	ask := func(path string) string {
		t.Helper()
		resp, err := f.client.Post("http://"+f.url+path, "application/json", strings.NewReader(`{"prompt":"x","messages":[],"max_tokens":3}`))
		if err != nil {
			t.Fatal(err)
		}
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
	// A request under way is in the count, and its client is one.
	held := make(chan struct{})
	e.set(func(i int, r *http.Request) {
		if i == 1 {
			<-held
		}
	}, nil)
	resp, err := f.client.Post("http://"+f.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"0123456789abcdef","max_tokens":9,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	eventually(t, func() bool {
		f.updateLoadHeader()
		text := f.loadHeader.Load()
		return strings.Contains(*text, "num_requests_running=1") && !strings.Contains(*text, "perc=0.0000") && f.ClientRequests() == 1
	})
	close(held)
	resp.Body.Close()
	eventually(t, func() bool { return f.ClientRequests() == 0 })
}
