package store

import "time"

// Times of a lease, by the wall clock: leases do not run faster in emulated fleets.
const (
	// LeaseTerm is how long a lease that is not renewed keeps others from planning.
	LeaseTerm = 3 * time.Second
	// leaseRenewal is the time between two renewals, at most a third of the term.
	leaseRenewal = time.Second
)

func (l Lease) equal(o Lease) bool { return l.Holder == o.Holder && l.Expires.Equal(o.Expires) }

// LeaseMachine decides which of several control planes plans. The right to plan is a lease in the plan object: its
// holder renews it, and another control plane takes it if it was not renewed for a term.
//
// The machine stores nothing and reads no clock: it receives the content of the store (Observe) and the results of its
// writes (Written, WriteFailed), and decides when and what to write (WriteDue, Next). Every write is a compare-and-swap
// of the whole object, so that of two control planes that want the lease only one gets it.
//
// Invariant: of machines with distinct names, whose clocks differ in rate by at most a half, at most one leads at a
// time. A machine never uses the time written in a lease to decide whether it expired, only its own clock since the lease
// changed, so that clocks need not show the same time; and a holder that cannot renew stops leading a third of the term
// before another may begin. It is not safe for concurrent use.
type LeaseMachine struct {
	self      string
	observed  bool      // the store was read
	stored    Lease     // what is stored, as far as known
	changedAt time.Time // when it was seen to change, by the own clock
	held      bool      // stored was written here
	renewedAt time.Time // when the write of stored began; for held
	retryAt   time.Time // no write before, after one that failed

	// next is the lease in every write until one of the writes is known to be stored. A write that was reported as
	// failed may still be stored, and be observed much later. The zero value means that there is none.
	next            Lease
	firstAt, lastAt time.Time // when Next returned it first and last
}

// NewLeaseMachine returns a machine that has read nothing. self is the name of this control plane, unique among those of
// a store.
func NewLeaseMachine(self string) *LeaseMachine { return &LeaseMachine{self: self} }

// WriteDue reports whether the lease should be written now: to renew it, or to take one
// that expired or that no control plane holds. The time now must not decrease between
// calls.
func (m *LeaseMachine) WriteDue(now time.Time) bool {
	switch {
	case !m.observed || now.Before(m.retryAt):
		return false
	case m.held:
		return now.Sub(m.renewedAt) >= leaseRenewal
	}
	return m.stored.Holder == "" || now.Sub(m.changedAt) >= LeaseTerm
}

// Leads reports whether this control plane may plan.
func (m *LeaseMachine) Leads(now time.Time) bool {
	return m.held && now.Sub(m.renewedAt) < LeaseTerm-LeaseTerm/3
}

// Next returns the lease to write now. A holder includes it in every object that it
// writes. The result of the write is reported by Written, WriteFailed or Observe.
func (m *LeaseMachine) Next(now time.Time) Lease {
	m.lastAt = now
	if m.next != (Lease{}) {
		return m.next
	}
	expires := now.Add(LeaseTerm).UTC().Round(0)
	if m.stored.Holder == m.self && !expires.After(m.stored.Expires) {
		// If the wall clock was set back, a renewal must still change the lease.
		expires = m.stored.Expires.Add(time.Nanosecond)
	}
	m.next, m.firstAt = Lease{m.self, expires}, now
	return m.next
}

// Written says that the object with the last Next was stored. The lease counts from
// that Next, however long the write took.
func (m *LeaseMachine) Written() { m.written(m.lastAt) }

// written says that a write of next, which began at the given time, was stored.
func (m *LeaseMachine) written(at time.Time) {
	m.observed, m.stored, m.changedAt, m.held, m.renewedAt = true, m.next, at, true, at
	m.next, m.retryAt = Lease{}, time.Time{}
}

// WriteFailed says that the object with the last Next was not stored, as far as is known. The write is
// retried after a delay, or when another object is observed.
func (m *LeaseMachine) WriteFailed(now time.Time) { m.retryAt = now.Add(leaseRenewal / 2) }

// Observe says that the store has the lease l, whichever control plane wrote it.
func (m *LeaseMachine) Observe(now time.Time, l Lease) {
	first := !m.observed
	m.observed = true
	switch {
	case !first && l.equal(m.stored): // something else in the object has changed
		m.retryAt = time.Time{}
		return
	case m.next != (Lease{}) && l.equal(m.next): // stored after all, although the write was reported as failed
		m.written(m.firstAt)
		return
	}
	m.stored, m.changedAt, m.held, m.next, m.retryAt = l, now, false, Lease{}, time.Time{}
	if first && l.Holder == m.self {
		// An earlier process of this control plane held the lease, and no longer plans.
		m.changedAt = now.Add(-LeaseTerm)
	}
}

// Holder returns the stored holder of the lease, and when it was last renewed by this
// machine's clock.
func (m *LeaseMachine) Holder() (holder string, since time.Time) { return m.stored.Holder, m.changedAt }

// Leader returns the control plane that holds a lease in force, as far as is known here;
// "" if none does.
func (m *LeaseMachine) Leader(now time.Time) string {
	if m.held && !m.Leads(now) || !m.held && now.Sub(m.changedAt) >= LeaseTerm {
		return ""
	}
	return m.stored.Holder
}

// NameTaken reports whether another control plane uses the name of this one. Both would
// then take the lease from each other whenever it expires.
func (m *LeaseMachine) NameTaken() bool { return m.observed && !m.held && m.stored.Holder == m.self }
