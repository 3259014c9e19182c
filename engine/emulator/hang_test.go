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
		ask := func() chan int {
			done := make(chan int, 1)
			go func() {
				done <- complete(t, e, `{"prompt":"a","max_tokens":5,"ignore_eos":true}`).Usage.CompletionTokens
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
		if a, b := <-begun, <-waiting; a != 5 || b != 5 {
			t.Errorf("%d and %d tokens, want 5 each", a, b)
		}
	})
}
