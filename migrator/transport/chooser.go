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

const (
	minBackoff      = time.Second      // after the first failure of a path; it doubles
	maxBackoff      = time.Minute      // of a path that fails again and again
	resetPulls      = 3                // successful pulls in a row that reset the backoff
	probeInterval   = time.Minute      // between two probes of a transport that works
	reprobeInterval = 10 * time.Second // between two probes of a transport that failed
	maxPaths        = 4096             // that are remembered; the least recently used are dropped
)

// Chooser ranks the transports by which a replica can pull from its peers: by the links
// between the two replicas, and by the results of earlier pulls from that peer. A path that
// fails is backed off. The backoff doubles with each failure, and only several successful
// pulls in a row reset it, so that a bad path is not tried with every migration.
//
// It only decides: the caller passes the time to each call, and runs probes and pulls. It
// is for one goroutine at a time.
type Chooser struct {
	transports []Transport
	probes     map[string]probe
	paths      map[path]*record
}

type probe struct {
	known  bool
	err    error
	at     time.Time
	due    bool // a pull has failed since, or the memory has changed
	listed bool // TransportsToProbe has listed it since it became due
}

type path struct {
	peer policies.ReplicaID
	name string
}

// record is the history of a path.
type record struct {
	used    time.Time
	err     error         // of the last failure; nil after a success
	until   time.Time     // end of the backoff
	backoff time.Duration // the latest one; 0 after resetPulls successes
	good    int           // successful pulls in a row
	pulls   int
	rate    float64 // bytes per second, smoothed; 0 if none was measured
}

// NewChooser returns a Chooser of these transports, in order of preference.
func NewChooser(transports ...Transport) *Chooser {
	return &Chooser{transports: slices.Clone(transports), probes: make(map[string]probe), paths: make(map[path]*record)}
}

// TransportsToProbe lists the transports that should be probed at now: all of them at
// first, later at intervals, and at once after a failed pull. The caller passes the
// results to RecordProbe.
func (c *Chooser) TransportsToProbe(now time.Time) []Transport {
	var due []Transport
	for _, t := range c.transports {
		p := c.probes[t.Name()]
		every := probeInterval
		if p.err != nil {
			every = reprobeInterval
		}
		if !p.known || p.due || now.Sub(p.at) >= every {
			due = append(due, t)
			p.listed = true
			c.probes[t.Name()] = p
		}
	}
	return due
}

// ReprobeAll makes all transports due for a probe. The caller calls it when the local
// engine, and its memory, has come or gone.
func (c *Chooser) ReprobeAll() {
	for name := range c.probes {
		c.setDue(name)
	}
}

func (c *Chooser) setDue(name string) {
	p := c.probes[name]
	p.due, p.listed = true, false
	c.probes[name] = p
}

// RecordProbe records the result of a probe. A transport that became due during the probe stays due.
func (c *Chooser) RecordProbe(name string, err error, now time.Time) {
	p := c.probes[name]
	c.probes[name] = probe{known: true, err: err, at: now, due: p.due && !p.listed}
}

// Pair is a replica that pulls and the peer that it pulls from.
type Pair struct {
	Peer           policies.ReplicaID
	Host, PeerHost string // of the replica and of the peer
	// Paths are the paths from the peer, best first (links.Paths), as far as the links
	// between the two are known; nil if they are unknown.
	Paths []links.Path
}

// Rank returns the transports by which a pair that has the transports of these names may
// pull, best first. It leaves out transports that do not reach the peer or whose probe
// failed. The order is:
//
//  1. transports of open paths, in the order of the paths;
//  2. transports that no path names, in the order of NewChooser;
//  3. transports whose paths are all closed, since the links may be known wrongly;
//  4. transports in backoff, the one whose backoff ends first.
//
// No transport means that blocks cannot be pulled.
func (c *Chooser) Rank(p Pair, names []string, now time.Time) []Transport {
	type ranked struct {
		Transport
		rank  int
		until time.Time // end of the backoff; zero for none
	}
	var order []ranked
	for _, t := range c.transports {
		name := t.Name()
		if !slices.Contains(names, name) || !t.CanReach(p.PeerHost, p.Host) || c.probes[name].err != nil {
			continue
		}
		next := ranked{Transport: t, rank: rank(p.Paths, name)}
		if r := c.paths[path{p.Peer, name}]; r != nil && now.Before(r.until) {
			next.until = r.until
		}
		order = append(order, next)
	}
	slices.SortStableFunc(order, func(a, b ranked) int {
		return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.rank, b.rank)) // the zero time comes first
	})
	out := make([]Transport, len(order))
	for i, r := range order {
		out[i] = r.Transport
	}
	return out
}

// rank returns the rank of a transport among the paths: open paths in their order, then transports that no path
// names, then closed paths.
func rank(paths []links.Path, name string) int {
	at := len(paths)
	for i, w := range paths {
		switch {
		case w.Transport != name:
		case !w.Closed:
			return i
		case at == len(paths):
			at += 1 + i
		}
	}
	return at
}

// RecordFailure records an Open or a Pull that failed. It ignores a refused ticket and a
// cancellation by the caller, which say nothing about the path, and nil.
func (c *Chooser) RecordFailure(peer policies.ReplicaID, name string, err error, now time.Time) {
	if err == nil || errors.Is(err, ErrRefused) || errors.Is(err, context.Canceled) {
		return
	}
	r := c.record(peer, name, now)
	r.backoff = min(max(2*r.backoff, minBackoff), maxBackoff)
	r.err, r.until, r.good = err, now.Add(r.backoff), 0
	c.setDue(name)
}

// RecordPull records a pull that succeeded.
func (c *Chooser) RecordPull(peer policies.ReplicaID, name string, s Stats, now time.Time) {
	r := c.record(peer, name, now)
	r.pulls++
	r.err, r.until = nil, time.Time{}
	if r.good++; r.good >= resetPulls {
		r.backoff = 0
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

// Forget drops the history of a peer that has left the fleet.
func (c *Chooser) Forget(peer policies.ReplicaID) {
	for p := range c.paths {
		if p.peer == peer {
			delete(c.paths, p)
		}
	}
}

// record returns the record of a path, and creates it if there is none. It drops the least
// recently used record when there are too many.
func (c *Chooser) record(peer policies.ReplicaID, name string, now time.Time) *record {
	key := path{peer, name}
	r := c.paths[key]
	if r == nil {
		if len(c.paths) >= maxPaths {
			oldest, at := path{}, now
			for p, r := range c.paths {
				if oldest.name == "" || r.used.Before(at) || r.used.Equal(at) && compare(p, oldest) < 0 {
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

func compare(a, b path) int {
	return cmp.Or(cmp.Compare(a.peer, b.peer), cmp.Compare(a.name, b.name))
}

// Path is the state of one transport, for display: on this host, by its last probe, if Peer
// is empty, or from one peer.
type Path struct {
	Peer      policies.ReplicaID
	Transport string
	Err       error         // why it is not used; nil if it is
	RetryIn   time.Duration // until the backoff ends; 0 if probes decide
	Pulls     int
	Rate      float64 // bytes per second, smoothed; 0 if none was measured
}

// Status lists the transports in order of preference, then the paths that have been used,
// by peer and name.
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
