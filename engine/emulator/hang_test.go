package emulator

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestHang checks what can be seen of a replica whose core stands still: /health, /metrics and new
// requests are answered as always, no token comes, and after it resumes every answer is whole.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, stop := start(t, Config{})
		defer stop()
		get := func(path string) *httptest.ResponseRecorder {
			return serveRequest(e, httptest.NewRequest(http.MethodGet, path, nil))
		}
		ask := func() chan *httptest.ResponseRecorder {
			done := make(chan *httptest.ResponseRecorder, 1)
			go func() {
				done <- serveRequest(e, post("/v1/completions", `{"prompt":"a","max_tokens":5,"ignore_eos":true}`))
			}()
			return done
		}
		begun := ask()
		time.Sleep(15 * time.Millisecond)
		serveRequest(e, post("/emulator/hang", ""))
		metrics := get("/metrics").Body.String()
		waiting := ask()
		time.Sleep(time.Hour)
		synctest.Wait()
		if code := get("/health").Code; code != http.StatusOK {
			t.Errorf("/health answers %d", code)
		}
		if now := get("/metrics").Body.String(); now != metrics {
			t.Errorf("the metrics of a hung core changed from\n%s\nto\n%s", metrics, now)
		}
		if len(begun)+len(waiting) != 0 {
			t.Error("a hung core generates")
		}
		serveRequest(e, post("/emulator/resume", ""))
		for _, answer := range []chan *httptest.ResponseRecorder{begun, waiting} {
			if n := decodeCompletion(t, <-answer).Usage.CompletionTokens; n != 5 {
				t.Errorf("%d tokens, want 5", n)
			}
		}
	})
}
