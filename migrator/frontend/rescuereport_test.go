package frontend

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRescueReport checks the report of a stream that goes on elsewhere, and of
// one that finds no replica.
func TestRescueReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer within(t, 10*time.Second)()
		reports := make(chan Rescue, 1)
		f, rs := newRescueFleet(t, 2, func(c *Config) {
			c.HangTimeout, c.RescueTimeout = 2*time.Second, 3*time.Second
			c.OnRescue = func(r Rescue) { reports <- r }
		})
		b := f.startRescuableStream()
		_, r, _ := f.findLeg(b.id)
		f.engines[0].freeze(r.Name)
		got := <-reports
		if got.Stream != b.id || got.Epoch != 2 || got.From != "r0" || got.To != "r1" || got.Length == 0 || got.Duration <= 0 || got.Start.IsZero() || got.Err != nil {
			t.Errorf("%+v", got)
		}
		answer := <-b.got
		if withoutCached(answer) != withoutCached(b.want) || !strings.Contains(answer, `"cached_tokens":null`) {
			t.Errorf("got %s\nwant %s with unknown cached tokens", answer, b.want)
		}
		f.requireIdle()
		flow := f.servers[1].Status().Flow
		if sum(flow.Arrivals) != 0 || sum(flow.Prefill) <= 0 || sum(flow.Weight) <= 0 {
			t.Errorf("a rescue is prefill without an arrival: %+v", flow)
		}

		rs.setTargets()
		b = f.startRescuableStream()
		f.engines[0].unhealthy.Store(true)
		f.engines[0].killAll()
		if got := <-reports; got.Stream != b.id || got.From != "r0" || got.To != "" || got.Err == nil {
			t.Errorf("%+v", got)
		}
		<-b.got
		f.requireIdle()
	})
}

// TestRescueDistrustsEarlierProbes checks that a health check which began before the engine was lost, and is answered
// after it, does not make the stream go on there.
func TestRescueDistrustsEarlierProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan Rescue, 1)
		f, rs := newRescueFleet(t, 1, func(c *Config) {
			c.RescueTimeout, c.OnRescue = 3*time.Second, func(r Rescue) { reports <- r }
		})
		rs.setTargets()
		b := f.startRescuableStream()
		h := &heldProbe{make(chan struct{}), make(chan struct{})}
		f.engines[0].heldProbe.Store(h)
		<-h.arrived
		f.engines[0].unhealthy.Store(true)
		f.engines[0].killAll()
		waitFor(t, func() bool { h, _ := f.servers[0].Holder(b.id); return h.Pending })
		close(h.release)
		if got := <-reports; got.To != "" || got.Err == nil {
			t.Errorf("%+v", got)
		}
		<-b.got
		f.requireIdle()
	})
}

func sum(cells []float64) (s float64) {
	for _, x := range cells {
		s += x
	}
	return s
}
