package transport

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// The times of a Chooser.
const (
	firstHold    = time.Second      // that a path is held back after its first failure; doubles
	longestHold  = time.Minute      // and its bound
	trust        = 3                // pulls in a row that undo what a path's failures did
	probeEvery   = time.Minute      // between two probes of a transport that works
	reprobeEvery = 10 * time.Second // and of one that does not
	maxPaths     = 4096             // that are remembered; those longest unused go first
)

// Chooser orders the transports by which a replica can pull from its peers: by what
// lies between the two, and by what it remembers, peer by peer. A transport that
// fails is held back for a while that doubles each time, and only several good pulls
// in a row make that while short again, so that a bad path is not tried move after
// move.
//
// It decides only: time comes in with each call, probes and pulls are the
// caller's. It is for one goroutine at a time.
type Chooser struct {
	transports []Transport
	probes     map[string]probe
	paths      map[path]*record
}

type probe struct {
	known bool
	err   error
	at    time.Time
	again bool // a pull has failed since
}

type path struct {
	peer policies.ReplicaID
	name string
}

// record is what is remembered of a path.
type record struct {
	used  time.Time
	err   error // why it is held back
	until time.Time
	hold  time.Duration // the latest one; 0 after enough good pulls
	good  int           // pulls in a row
	pulls int
	rate  float64 // bytes per second, smoothed; 0 for none measured
}

// NewChooser returns a Chooser of these transports, the preferred ones first.
func NewChooser(transports ...Transport) *Chooser {
	return &Chooser{transports: slices.Clone(transports), probes: make(map[string]probe), paths: make(map[path]*record)}
}

// TransportsToProbe lists the transports that should be probed at now: all at first, later
// from time to time, and at once after a pull has failed. The caller tells
// Probed.
func (c *Chooser) TransportsToProbe(now time.Time) []Transport {
	var due []Transport
	for _, t := range c.transports {
		p := c.probes[t.Name()]
		every := probeEvery
		if p.err != nil {
			every = reprobeEvery
		}
		if !p.known || p.again || now.Sub(p.at) >= every {
			due = append(due, t)
		}
	}
	return due
}

// ReprobeAll says that the own engine has come or gone, and its memory with it: all
// transports are due.
func (c *Chooser) ReprobeAll() {
	for name, p := range c.probes {
		p.again = true
		c.probes[name] = p
	}
}

// RecordProbe takes the outcome of a probe.
func (c *Chooser) RecordProbe(name string, err error, now time.Time) {
	c.probes[name] = probe{known: true, err: err, at: now}
}

// Pair is a replica that pulls and a peer that it pulls from.
type Pair struct {
	Peer           policies.ReplicaID
	Host, PeerHost string // the nodes of the two
	// Ways are those from the peer, best first, as far as it is known what lies between
	// the two (links.Paths); nil for not at all.
	Ways []links.Path
}

// Choice is a transport of an order.
type Choice struct {
	Transport Transport
	// Reason says why it stands where it does: what it goes over, or what is against it.
	Reason string
}

// Rank returns the transports by which a pair that has those of these names may
// pull, the best first. Transports that do not reach, or that were probed and cannot
// be used, are left out. The order is that of the ways; those that no way names come
// after the open ones, in the order of NewChooser, and then those whose ways are all
// closed: what is known of the links may be wrong. Those that are held back come
// last, the one that is free soonest first. None means that blocks cannot be moved.
func (c *Chooser) Rank(p Pair, names []string, now time.Time) []Choice {
	type ranked struct {
		Choice
		rank  int
		until time.Time // held back; zero: not
	}
	var order []ranked
	for _, t := range c.transports {
		name := t.Name()
		if !slices.Contains(names, name) || !t.CanReach(p.PeerHost, p.Host) || c.probes[name].err != nil {
			continue
		}
		next := ranked{Choice: Choice{Transport: t}}
		next.rank, next.Reason = rank(p.Ways, name)
		if r := c.paths[path{p.Peer, name}]; r != nil && now.Before(r.until) {
			next.until = r.until
			next.Reason = "held back for " + r.until.Sub(now).Round(time.Millisecond).String() + ": " + r.err.Error()
		}
		order = append(order, next)
	}
	slices.SortStableFunc(order, func(a, b ranked) int {
		if !a.until.IsZero() || !b.until.IsZero() {
			return a.until.Compare(b.until) // the zero time is before all others
		}
		return cmp.Compare(a.rank, b.rank)
	})
	out := make([]Choice, len(order))
	for i, r := range order {
		out[i] = r.Choice
	}
	return out
}

// rank is a transport's place among the ways, and what they say of it.
func rank(ways []links.Path, name string) (int, string) {
	at := -1
	for i, w := range ways {
		switch {
		case w.Transport != name:
		case !w.Closed:
			return i, w.Reason
		case at < 0:
			at = i
		}
	}
	switch {
	case at >= 0:
		return len(ways) + 1 + at, "tried last: " + ways[at].Reason
	case ways == nil:
		return 0, "nothing is known of the links: by preference"
	}
	return len(ways), "nothing is known of this way"
}

// RecordFailure takes an Open or a Pull that failed. It says nothing about the path
// when the source refused the ticket or the caller gave up; those are ignored.
func (c *Chooser) RecordFailure(peer policies.ReplicaID, name string, err error, now time.Time) {
	if err == nil || errors.Is(err, ErrRefused) || errors.Is(err, context.Canceled) {
		return
	}
	r := c.record(peer, name, now)
	r.hold = min(max(2*r.hold, firstHold), longestHold)
	r.err, r.until, r.good = err, now.Add(r.hold), 0
	p := c.probes[name]
	p.again = true
	c.probes[name] = p
}

// RecordPull takes a pull that went well.
func (c *Chooser) RecordPull(peer policies.ReplicaID, name string, s Stats, now time.Time) {
	r := c.record(peer, name, now)
	r.pulls++
	r.err, r.until = nil, time.Time{}
	if r.good++; r.good >= trust {
		r.hold = 0
	}
	if s.Duration <= 0 || s.Bytes == 0 {
		return
	}
	rate := float64(s.Bytes) / s.Duration.Seconds()
	if r.rate == 0 {
		r.rate = rate
	}
	r.rate += (rate - r.rate) / 8
}

// Forget drops what is remembered of a peer that has gone.
func (c *Chooser) Forget(peer policies.ReplicaID) {
	for p := range c.paths {
		if p.peer == peer {
			delete(c.paths, p)
		}
	}
}

// record finds or makes a path's record, and keeps their number bounded.
func (c *Chooser) record(peer policies.ReplicaID, name string, now time.Time) *record {
	key := path{peer, name}
	r := c.paths[key]
	if r == nil {
		if len(c.paths) >= maxPaths {
			oldest, at := path{}, now
			for p, r := range c.paths {
				if oldest.name == "" || r.used.Before(at) || r.used.Equal(at) && less(p, oldest) {
					oldest, at = p, r.used
				}
			}
			delete(c.paths, oldest)
		}
		r = &record{}
		c.paths[key] = r
	}
	r.used = now
	return r
}

func less(a, b path) bool { return compare(a, b) < 0 }

func compare(a, b path) int {
	return cmp.Or(cmp.Compare(a.peer, b.peer), cmp.Compare(a.name, b.name))
}

// Path is how one transport does, for display. An empty Peer is the machine: what
// its probe said.
type Path struct {
	Peer      policies.ReplicaID
	Transport string
	Err       error         // it is not used; nil when it is
	RetryIn   time.Duration // that it is held back still; 0 where that depends on probes
	Pulls     int
	Rate      float64 // bytes per second, smoothed over some pulls; 0 for none measured
}

// Status lists the transports in order of preference, then the paths that were
// used, by peer and name.
func (c *Chooser) Status(now time.Time) []Path {
	var out []Path
	for _, t := range c.transports {
		out = append(out, Path{Transport: t.Name(), Err: c.probes[t.Name()].err})
	}
	var keys []path
	for p := range c.paths {
		keys = append(keys, p)
	}
	slices.SortFunc(keys, compare)
	for _, k := range keys {
		r := c.paths[k]
		p := Path{Peer: k.peer, Transport: k.name, Pulls: r.pulls, Rate: r.rate}
		if now.Before(r.until) {
			p.Err, p.RetryIn = r.err, r.until.Sub(now)
		}
		out = append(out, p)
	}
	return out
}
