package stream

import (
	"testing"
	"time"
)

// TestRescueIsTold checks what is told of a stream that goes on elsewhere, and of
// one that finds no replica.
func TestRescueIsTold(t *testing.T) {
	t.Parallel()
	told := make(chan Rescue, 1)
	f, rs := newRescueFleet(t, 2, func(c *Config) {
		c.HangTimeout, c.RescueTimeout = 200*time.Millisecond, 3*time.Second
		c.Rescued = func(r Rescue) { told <- r }
	})
	b := f.rescuable()
	_, r, _ := f.where(b.id)
	f.engines[0].freeze(r.Leg)
	got := <-told
	if got.Stream != b.id || got.Epoch != 2 || got.From != "r0" || got.To != "r1" || got.Length == 0 || got.Took <= 0 || got.Began.IsZero() || got.Err != nil {
		t.Errorf("%+v", got)
	}
	f.expectRescued(b)

	rs.know()
	b = f.rescuable()
	f.engines[0].sick.Store(true)
	f.engines[0].cut()
	if got := <-told; got.Stream != b.id || got.From != "r0" || got.To != "" || got.Err == nil {
		t.Errorf("%+v", got)
	}
	<-b.got
	f.atRest()
}
