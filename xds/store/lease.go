package store

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Defaults of Config.
const (
	LeaseTerm    = 3 * time.Second
	LeaseRenewal = time.Second
)

// LeaseConfig is the configuration of a Machine. Times are wall clock: leases do not run
// faster in emulated fleets.
type LeaseConfig struct {
	// Self is the name of this control plane, unique among those of a store. Required.
	Self string
	// Term is how long a lease that is not renewed keeps others from planning. 0
	// means 3 s.
	Term time.Duration
	// Renew is the time between two renewals, at most a third of Term. 0 means
	// 1 s, or a third of Term if that is less.
	Renew time.Duration
}

func (c LeaseConfig) withDefaults() (LeaseConfig, error) {
	if c.Self == "" {
		return c, errors.New("lease: Self is empty; give this control plane a unique name")
	}
	c.Term = cmp.Or(c.Term, LeaseTerm)
	c.Renew = cmp.Or(c.Renew, min(LeaseRenewal, c.Term/3))
	if c.Renew <= 0 || c.Renew > c.Term/3 {
		return c, fmt.Errorf("lease: Renew is %v and Term is %v; a term must be at least three renewals long", c.Renew, c.Term)
	}
	return c, nil
}

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
	c         LeaseConfig
	observed  bool      // the store was read
	stored    Lease     // what is stored, as far as known
	changedAt time.Time // when it was seen to change, by the own clock
	held      bool      // stored was written here
	renewedAt time.Time // when the write of stored began; for held
	next      Lease     // the last one returned by Next, at the time nextAt
	nextAt    time.Time
	retryAt   time.Time // no write before, after one that failed
}

// NewLeaseMachine returns a machine that has read nothing.
func NewLeaseMachine(c LeaseConfig) (*LeaseMachine, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	return &LeaseMachine{c: c}, nil
}

// WriteDue reports whether the lease should be written now: to renew it, or to take one
// that expired or that no control plane holds. The time now must not decrease between
// calls.
func (m *LeaseMachine) WriteDue(now time.Time) bool {
	switch {
	case !m.observed || now.Before(m.retryAt):
		return false
	case m.held:
		return now.Sub(m.renewedAt) >= m.c.Renew
	}
	return m.Free(now)
}

// Free reports whether no other control plane has a lease in force.
func (m *LeaseMachine) Free(now time.Time) bool {
	return m.observed && (m.held || m.stored.Holder == "" || now.Sub(m.changedAt) >= m.c.Term)
}

// Leads reports whether this control plane may plan.
func (m *LeaseMachine) Leads(now time.Time) bool {
	return m.held && now.Sub(m.renewedAt) < m.c.Term-m.c.Term/3
}

// Next returns the lease to write now. A holder includes it in every object that it
// writes. The result of the write is reported by Written, WriteFailed or Observe.
func (m *LeaseMachine) Next(now time.Time) Lease {
	expires := now.Add(m.c.Term).UTC().Round(0)
	if m.stored.Holder == m.c.Self && !expires.After(m.stored.Expires) {
		// If the wall clock was set back, a renewal must still change the lease.
		expires = m.stored.Expires.Add(time.Nanosecond)
	}
	m.next, m.nextAt = Lease{m.c.Self, expires}, now
	return m.next
}

// Written says that the object with the last Next was stored. The lease counts from
// that Next, however long the write took.
func (m *LeaseMachine) Written() {
	m.observed, m.stored, m.changedAt, m.held, m.renewedAt, m.retryAt = true, m.next, m.nextAt, true, m.nextAt, time.Time{}
}

// WriteFailed says that the object with the last Next was not stored. The write is
// retried after a delay, or when another object is observed.
func (m *LeaseMachine) WriteFailed(now time.Time) { m.retryAt = now.Add(m.c.Renew / 2) }

// Observe says that the store has the lease l, whichever control plane wrote it.
func (m *LeaseMachine) Observe(now time.Time, l Lease) {
	first := !m.observed
	m.observed = true
	if !first && l.equal(m.stored) {
		m.retryAt = time.Time{} // something else in the object has changed
		return
	}
	if l.equal(m.next) {
		m.Written() // stored after all, although the write was reported as failed
		return
	}
	m.stored, m.changedAt, m.held, m.retryAt = l, now, false, time.Time{}
	if first && l.Holder == m.c.Self {
		// An earlier process of this control plane held the lease, and no longer plans.
		m.changedAt = now.Add(-m.c.Term)
	}
}

// Holder returns the stored holder of the lease, and when it was last renewed by this
// machine's clock.
func (m *LeaseMachine) Holder() (holder string, since time.Time) { return m.stored.Holder, m.changedAt }

// Leader returns the control plane that holds a lease in force, as far as is known here;
// "" if none does.
func (m *LeaseMachine) Leader(now time.Time) string {
	if m.held && !m.Leads(now) || !m.held && now.Sub(m.changedAt) >= m.c.Term {
		return ""
	}
	return m.stored.Holder
}

// NameTaken reports whether another control plane uses the name of this one. Both would
// then take the lease from each other whenever it expires.
func (m *LeaseMachine) NameTaken() bool { return m.observed && !m.held && m.stored.Holder == m.c.Self }
