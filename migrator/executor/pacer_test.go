package executor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Pulls take the time that the link would need, one after the other, including the time for
// copying.
func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{rate: 1000}
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := p.wait(t.Context(), start, 500); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != 1500*time.Millisecond {
			t.Errorf("3 times 500 bytes at 1,000 a second took %v", took)
		}
		start = time.Now()
		time.Sleep(300 * time.Millisecond) // the copying
		p.wait(t.Context(), start, 500)
		if took := time.Since(start); took != 500*time.Millisecond {
			t.Errorf("500 bytes took %v", took)
		}
		start = time.Now()
		time.Sleep(time.Second)
		p.wait(t.Context(), start, 500)
		if took := time.Since(start); took != time.Second {
			t.Errorf("500 bytes that were slower than the link took %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.wait(ctx, time.Now(), 1<<50); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("2^50 bytes: %v", err)
		}
		start = time.Now()
		p.wait(t.Context(), start, 500)
		if took := time.Since(start).Round(time.Millisecond); took != 500*time.Millisecond {
			t.Errorf("500 bytes after those that were given up took %v", took)
		}
		if err := (&pacer{}).wait(ctx, time.Now(), 1<<50); err != nil {
			t.Errorf("no link: %v", err)
		}
	})
}
