package balance

import "time"

// Answered tells that a host answered with a status. It reports whether that
// ejected the host.
func (b *Balancer) Answered(now time.Time, h *Host, status int) (ejected bool) {
	// Success is the common case and touches no lock.
	reset(&h.local)
	if status < 500 {
		reset(&h.errors5xx)
		reset(&h.gateway)
		return false
	}
	worst := h.errors5xx.Add(1)
	gateway := int32(0)
	if status >= 502 && status <= 504 {
		gateway = h.gateway.Add(1)
	} else {
		reset(&h.gateway)
	}
	return b.judge(now, h, worst, gateway, 0)
}

// Failed tells that a host gave no answer: no connection, a reset, a timeout.
// It reports whether that ejected the host.
func (b *Balancer) Failed(now time.Time, h *Host) (ejected bool) {
	b.mu.Lock()
	split := b.cluster != nil && b.cluster.Outlier != nil && b.cluster.Outlier.Split
	b.mu.Unlock()
	if split {
		return b.judge(now, h, 0, 0, h.local.Add(1))
	}
	// To whoever does not split, a connection that fails is a 503.
	return b.judge(now, h, h.errors5xx.Add(1), h.gateway.Add(1), 0)
}

// reset clears a counter; most are clear already, and reading is cheaper.
func reset(c interface {
	Load() int32
	Store(int32)
}) {
	if c.Load() != 0 {
		c.Store(0)
	}
}

// judge ejects the host when one of its counts reached the limit.
func (b *Balancer) judge(now time.Time, h *Host, worst, gateway, local int32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cluster == nil || b.cluster.Outlier == nil || b.hosts[h.Address] != h || h.out {
		return false
	}
	o := b.cluster.Outlier
	reached := func(count int32, limit int) bool { return limit > 0 && int(count) >= limit }
	if !reached(worst, o.Consecutive5xx) && !reached(gateway, o.ConsecutiveGateway) && !reached(local, o.ConsecutiveLocal) {
		return false
	}
	if share(b.ejected, len(b.hosts)) >= float64(o.MaxPercent) {
		return false
	}
	if o.Interval > 0 && !h.lastBack.IsZero() {
		h.times = max(0, h.times-int(now.Sub(h.lastBack)/o.Interval))
	}
	h.times++
	// Compare before multiplying: the product may not fit.
	long := o.Max
	if o.Base == 0 || int64(h.times) <= int64(o.Max/o.Base) {
		long = o.Base * time.Duration(h.times)
	}
	h.out, h.until, h.lastBack = true, now.Add(long), now.Add(long)
	b.rebuildLocked(b.phasesLocked())
	return true
}

// returnLocked ends the ejections that are over.
func (b *Balancer) returnLocked(now time.Time) {
	for _, h := range b.hosts {
		if h.out && !now.Before(h.until) {
			h.out = false
			h.errors5xx.Store(0)
			h.gateway.Store(0)
			h.local.Store(0)
		}
	}
	b.rebuildLocked(b.phasesLocked())
}
