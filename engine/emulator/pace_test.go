package emulator

import (
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// TestPace checks the paces of an engine that delivers in time, and of one that is stopped in the
// middle of an iteration: its delay is that of the iteration, and of the following ones until it has
// caught up.
func TestPace(t *testing.T) {
	for _, tc := range []struct {
		name       string
		stop, hung time.Duration
		late       time.Duration
	}{
		{name: "in time"},
		// Iterations are due at 10.1, 21.1, 32.1, 43.1, 54.1 and 65.1 ms, and the second to the fourth end
		// at 50 ms.
		{name: "stopped", stop: 15 * time.Millisecond, hung: 35 * time.Millisecond, late: 53700 * time.Microsecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, stop := start(t, Config{})
				defer stop()
				if p := e.Pace(); p != (Pace{}) || p.Lateness() != 0 {
					t.Errorf("before the first iteration: %+v", p)
				}
				done := make(chan *httptest.ResponseRecorder, 1)
				go func() {
					done <- serveRequest(e, post("/v1/completions", `{"prompt":"a","max_tokens":6,"ignore_eos":true}`))
				}()
				time.Sleep(tc.stop)
				if tc.hung > 0 {
					serveRequest(e, post("/emulator/hang", ""))
					time.Sleep(tc.hung)
					serveRequest(e, post("/emulator/resume", ""))
				}
				decodeCompletion(t, <-done)
				want := Pace{Iterations: 6, Scheduled: 65100 * time.Microsecond, Late: tc.late}
				if p := e.Pace(); p != want {
					t.Errorf("%+v, want %+v", p, want)
				}
				if got := want.Add(want).Since(want); got != want || got.Lateness() != float64(tc.late)/65.1e6 {
					t.Errorf("added twice and subtracted once: %+v, lateness %v", got, got.Lateness())
				}
			})
		})
	}
}
