package proxy

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func watched(idle time.Duration) (*watchdog, func() error) {
	var cause atomic.Pointer[error]
	return &watchdog{
			untilLate: func() time.Duration { return 0 },
			idle:      idle, begun: time.Now(), reading: func() bool { return false },
			cancel: func(err error) { cause.Store(&err) }, control: http.NewResponseController(httptest.NewRecorder()),
		}, func() error {
			if err := cause.Load(); err != nil {
				return *err
			}
			return nil
		}
}

// TestWatchIsExact checks that the idle limit counts from the last byte, not from the
// time when the timer fires.
func TestWatchIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, cause := watched(time.Second)
		w.start()
		for range 100 {
			time.Sleep(900 * time.Millisecond)
			w.recordProgress()
		}
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if cause() != nil {
			t.Fatal("a lively stream was ended:", cause())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if !errors.Is(cause(), errIdle) {
			t.Errorf("cause %v", cause())
		}
		w.stop()
	})
}

// TestWatchEndsWithBody: where only the arrival of the body is limited, the timer does not
// run on once the body has ended.
func TestWatchEndsWithBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, cause := watched(0)
		asked := 0
		w.untilLate = func() time.Duration {
			if asked++; asked == 1 {
				return time.Second
			}
			return 0
		}
		w.cancel = func(err error) { t.Error(err) }
		w.start()
		time.Sleep(2 * time.Second)
		w.stop()
		synctest.Wait()
		if cause() != nil || asked != 2 {
			t.Errorf("cause %v, limit asked for %d times, want 2", cause(), asked)
		}
	})
}

func TestWatchStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, cause := watched(time.Second)
		w.start()
		w.stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if cause() != nil {
			t.Error("a stopped watch fired")
		}
	})
}
