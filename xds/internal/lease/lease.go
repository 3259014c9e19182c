// Package lease decides who of several control planes plans: the right to plan
// is a lease in the plan object, which its holder renews and which others take
// when it was not renewed for a term.
//
// It stores nothing and reads no clock: a Machine is told what is in the store
// and what became of its writes, and says what to write. Every write is a
// compare-and-swap of the whole object, so that of two who want the lease one
// gets it.
//
// The invariant: of machines with names of their own, whose clocks run at most
// half as fast again as each other, at most one leads at a time. A lease is
// never judged by the time written in it, but by the reader's own clock since it
// changed, so that clocks need not show the same time; and a holder that cannot
// renew stops leading a third of the term before anybody else may begin.
package lease

import (
	"errors"
	"fmt"
	"time"
)

// Defaults of Config.
const (
	DefaultTerm  = 3 * time.Second
	DefaultRenew = time.Second
)

// Config sets a Machine up. Times are of the wall: leases do not run faster
// where engines do.
type Config struct {
	// Self is the name of this control plane; each of a store has one of its
	// own. Required.
	Self string
	// Term is how long a lease that is not renewed keeps others from planning. 0
	// means 3 s.
	Term time.Duration
	// Renew is the time between two renewals, at most a third of Term. 0 means
	// 1 s, or a third of Term if that is less.
	Renew time.Duration
}

func (c Config) complete() (Config, error) {
	if c.Self == "" {
		return c, errors.New("lease: Self is empty; give this control plane a name of its own")
	}
	if c.Term == 0 {
		c.Term = DefaultTerm
	}
	if c.Renew == 0 {
		c.Renew = min(DefaultRenew, c.Term/3)
	}
	if c.Renew <= 0 || c.Renew > c.Term/3 {
		return c, fmt.Errorf("lease: renewal every %v and a term of %v: a term has room for three renewals", c.Renew, c.Term)
	}
	return c, nil
}

// Lease is what is stored.
type Lease struct {
	Holder  string // "": nobody
	Expires time.Time
}

func (l Lease) equal(o Lease) bool { return l.Holder == o.Holder && l.Expires.Equal(o.Expires) }

// Machine is one control plane's part in the lease. It is not safe for
// concurrent use.
type Machine struct {
	c     Config
	known bool      // something was seen of the store
	seen  Lease     // what is stored, as far as known
	since time.Time // when it was seen to change, by the own clock
	mine  bool      // seen was written here
	began time.Time // when the write of seen began; for mine
	tried Lease     // the last that was to be written, at the time at
	at    time.Time
	again time.Time // no write before, after a refused one
}

// New returns a machine that has seen nothing.
func New(c Config) (*Machine, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	return &Machine{c: c}, nil
}

// Due says that the lease should be written now: renewed, taken over from who
// let it run out, or taken where nobody has it. now must not go back.
func (m *Machine) Due(now time.Time) bool {
	switch {
	case !m.known || now.Before(m.again):
		return false
	case m.mine:
		return now.Sub(m.began) >= m.c.Renew
	}
	return m.Free(now)
}

// Free says that nobody else has a lease in force.
func (m *Machine) Free(now time.Time) bool {
	return m.known && (m.mine || m.seen.Holder == "" || now.Sub(m.since) >= m.c.Term)
}

// Leads says that this control plane may plan.
func (m *Machine) Leads(now time.Time) bool {
	return m.mine && now.Sub(m.began) < m.c.Term-m.c.Term/3
}

// Try returns the lease to write where one is to be written now: by a holder in
// every object that it writes. Wrote, Refused or Saw tells what became of it.
func (m *Machine) Try(now time.Time) Lease {
	expires := now.Add(m.c.Term).UTC().Round(0)
	if m.seen.Holder == m.c.Self && !expires.After(m.seen.Expires) {
		// A wall clock that was set back: a renewal that changes nothing is none.
		expires = m.seen.Expires.Add(time.Nanosecond)
	}
	m.tried, m.at = Lease{m.c.Self, expires}, now
	return m.tried
}

// Wrote says that the object with the lease of the last Try was stored. The lease
// counts from that Try, however long the write took.
func (m *Machine) Wrote() {
	m.known, m.seen, m.since, m.mine, m.began, m.again = true, m.tried, m.at, true, m.at, time.Time{}
}

// Refused says that the object with the lease of the last Try was not stored. It is tried again
// when something else is seen, or after a while.
func (m *Machine) Refused(now time.Time) { m.again = now.Add(m.c.Renew / 2) }

// Saw says that the store holds the lease l, whoever wrote it.
func (m *Machine) Saw(now time.Time, l Lease) {
	first := !m.known
	m.known = true
	if !first && l.equal(m.seen) {
		m.again = time.Time{} // the object changed all the same
		return
	}
	if l.equal(m.tried) {
		m.Wrote() // stored after all, though the store said that it was not
		return
	}
	m.seen, m.since, m.mine, m.again = l, now, false, time.Time{}
	if first && l.Holder == m.c.Self {
		// The former life of this control plane had it, and does not plan any more.
		m.since = now.Add(-m.c.Term)
	}
}

// Holder is who has the lease as stored, and since when, by the own clock, it
// was not renewed.
func (m *Machine) Holder() (holder string, since time.Time) { return m.seen.Holder, m.since }

// Doubled says that another control plane uses the name of this one: both would
// take the lease from each other whenever it runs out.
func (m *Machine) Doubled() bool { return m.known && !m.mine && m.seen.Holder == m.c.Self }
