package frontend

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestServiceCounts checks what a front end reports of how its clients were served: times of answers, and requests
// that failed, whether with a status or in the middle of an answer.
func TestServiceCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		srv := startServer(t, e.URL, nil)
		askAt := func(path, body string) (status int) {
			resp := testkit.Must(srv.client.Post("http://"+srv.url+path, "application/json", strings.NewReader(body)))
			defer resp.Body.Close()
			_, _ = io.Copy(io.Discard, resp.Body)
			synctest.Wait()
			return resp.StatusCode
		}
		ask := func() int {
			return askAt("/v1/completions", `{"model":"m","prompt":"x","max_tokens":7,"stream":true}`)
		}
		e.set(func(int, *http.Request) { time.Sleep(20 * time.Millisecond) }, nil)
		ask()
		s := srv.Status().Service
		if s.FirstToken.Total() != 1 || s.PerToken.Total() != 1 || s.Failed != 0 || s.PerToken.Quantile(1) < 0.016 || s.PerToken.Quantile(1) > 0.028 {
			t.Errorf("after an answer: %+v", s)
		}
		health := testkit.Must(srv.client.Get("http://" + srv.url + "/health"))
		health.Body.Close()
		if n := srv.Status().Received; n != 1 {
			t.Errorf("after a request and a health check: %d requests received, want 1", n)
		}
		for i, override := range []http.HandlerFunc{
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) },
			func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
			func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"a\",\"token_ids\":[1]}]}\n\n")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			},
		} {
			e.set(nil, override)
			status := ask()
			if got := srv.Status().Service.Failed; got != uint64(i+1) {
				t.Errorf("case %d, answered with %d: %d failed, want %d", i, status, got, i+1)
			}
		}
		e.set(nil, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "your fault", http.StatusBadRequest) })
		if status := ask(); status != http.StatusBadRequest || srv.Status().Service.Failed != 3 {
			t.Errorf("a bad request, answered with %d, counts: %d", status, srv.Status().Service.Failed)
		}
		for i, answer := range []func(http.ResponseWriter, *http.Request){
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) },
			func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		} {
			e.passthrough.Store(&answer)
			status := askAt("/v1/embeddings", `{"input":"x"}`)
			if got := srv.Status().Service.Failed; got != uint64(i+4) {
				t.Errorf("embeddings, case %d, answered with %d: %d failed, want %d", i, status, got, i+4)
			}
		}
		srv.overloadEngine()
		if status := askAt("/v1/embeddings", `{"input":"once upon a time there was a replica"}`); status != http.StatusTooManyRequests || srv.Status().TurnedAway != 1 || srv.Status().Service.Failed != 5 {
			t.Errorf("embeddings, answered with %d: %d turned away, %d failed", status, srv.Status().TurnedAway, srv.Status().Service.Failed)
		}
	})
}
