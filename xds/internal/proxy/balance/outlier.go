package balance

import "time"

// ReportStatus reports the status of a host's response. It returns whether that ejected
// the host.
func (b *Balancer) ReportStatus(now time.Time, h *Host, status int) (ejected bool) {
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
	return b.ejectIfDue(now, h, worst, gateway, 0)
}

// ReportFailure reports that a host did not respond: no connection, a reset, a timeout.
// It returns whether that ejected the host.
func (b *Balancer) ReportFailure(now time.Time, h *Host) (ejected bool) {
	b.mu.Lock()
	split := b.cluster != nil && b.cluster.OutlierDetection != nil && b.cluster.OutlierDetection.SplitLocal
	b.mu.Unlock()
	if split {
		return b.ejectIfDue(now, h, 0, 0, h.local.Add(1))
	}
	// Without the split, a failed connection counts as a 503.
	return b.ejectIfDue(now, h, h.errors5xx.Add(1), h.gateway.Add(1), 0)
}

// reset clears a counter. Most are 0 already, and reading is cheaper than writing.
func reset(c interface {
	Load() int32
	Store(int32)
}) {
	if c.Load() != 0 {
		c.Store(0)
	}
}

// ejectIfDue ejects the host if one of its counts has reached its limit.
func (b *Balancer) ejectIfDue(now time.Time, h *Host, worst, gateway, local int32) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cluster == nil || b.cluster.OutlierDetection == nil || b.hosts[h.Address] != h || h.ejected {
		return false
	}
	o := b.cluster.OutlierDetection
	reached := func(count int32, limit int) bool { return limit > 0 && int(count) >= limit }
	if !reached(worst, o.Consecutive5xx) && !reached(gateway, o.ConsecutiveGateway) && !reached(local, o.ConsecutiveLocal) {
		return false
	}
	if percent(b.ejected, len(b.hosts)) >= float64(o.MaxPercent) {
		return false
	}
	if o.Interval > 0 && !h.updatedAt.IsZero() {
		h.ejections = max(0, h.ejections-int(now.Sub(h.updatedAt)/o.Interval))
	}
	h.ejections++
	// Compare before multiplying: the product may not fit.
	long := o.MaxEjection
	if o.BaseEjection == 0 || int64(h.ejections) <= int64(o.MaxEjection/o.BaseEjection) {
		long = o.BaseEjection * time.Duration(h.ejections)
	}
	h.ejected, h.until, h.updatedAt = true, now.Add(long), now.Add(long)
	b.rebuildLocked(b.phasesLocked())
	return true
}

// returnLocked ends the ejections that have expired.
func (b *Balancer) returnLocked(now time.Time) {
	for _, h := range b.hosts {
		if h.ejected && !now.Before(h.until) {
			h.ejected = false
			h.errors5xx.Store(0)
			h.gateway.Store(0)
			h.local.Store(0)
		}
	}
	b.rebuildLocked(b.phasesLocked())
}
