// Package loadview is what a replica has heard of its peers' loads, and where it
// therefore places requests: those that begin and those whose engine was lost.
//
// It decides by policies.Placer and by load, over few and slightly old facts;
// the market, which asks, is the place for running requests. It corrects what
// it has heard by what it does itself, so that many requests at once do not all
// go to the replica that was idle a second ago.
//
// Invariants:
//
//  1. Nothing that drains, is gone or has no address is named, but for the own
//     replica when nobody else is left.
//  2. Place looks at a bounded number of replicas, however many there are.
package loadview

import (
	"math/rand/v2"
	"sync"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// The defaults and bounds.
const (
	DefaultMaxAge     = 3 * policies.Second
	DefaultSampleSize = 8
	maxExamined       = 256 // entries looked at for one sample
)

// Config sets a Board up.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// Placer decides where requests begin. nil: all here.
	Placer policies.Placer
	// MaxAge is how old a load may be and still count. 0 means 3 s.
	MaxAge policies.Micros
	// SampleSize is how many replicas of the right stage, and of longer ones, the
	// Placer is shown. 0 means 8.
	SampleSize int
	// Seed chooses the samples.
	Seed uint64
}

// Load is what a replica carries.
type Load struct {
	Waiting  policies.Tokens // prompts accepted and not yet prefilled
	Total    policies.Tokens // KV in use and promised
	Draining bool            // or not able to serve
}

// View is safe for concurrent use.
type View struct {
	cfg Config

	mu       sync.Mutex
	plan     policies.Plan
	own      int // the own stage, −1 for none
	self     Load
	peers    map[policies.ReplicaID]*peerEntry
	adapters policies.Adapters
	stages   [][]*peerEntry // of the plan, without the own replica
	rng      *rand.Rand
	sites    []policies.Candidate // scratch
	forwards uint64
}

// peerEntry is one peer.
type peerEntry struct {
	id       policies.ReplicaID
	address  string
	draining bool // by the control plane's word
	gone     bool
	load     Load
	loadedAt policies.Micros // of load
	hasLoad  bool            // there is a load
}

// New returns an empty Board. Its fields are checked by the caller.
func New(c Config) *View {
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.SampleSize == 0 {
		c.SampleSize = DefaultSampleSize
	}
	return &View{cfg: c, own: -1, peers: make(map[policies.ReplicaID]*peerEntry), rng: rand.New(rand.NewPCG(c.Seed, 1))}
}

// SetView tells the plan and the replicas of the own model. The plan and the
// peers are kept, not copied.
func (b *View) SetView(plan policies.Plan, replicas []policies.Replica) {
	b.mu.Lock()
	defer b.mu.Unlock()
	named := make(map[policies.ReplicaID]*peerEntry, len(replicas))
	for _, r := range replicas {
		if r.ID == b.cfg.Self {
			continue
		}
		e := b.peers[r.ID]
		if e == nil {
			e = &peerEntry{id: r.ID}
		}
		e.address, e.draining = r.Peer, r.Draining
		named[r.ID] = e
	}
	b.peers, b.plan, b.own = named, plan, plan.StageOfReplica(b.cfg.Self)
	b.adapters = policies.NewAdapters(replicas)
	b.stages = make([][]*peerEntry, len(plan.Stages))
	for k, s := range plan.Stages {
		for _, id := range s.Replicas {
			if e := named[id]; e != nil {
				b.stages[k] = append(b.stages[k], e)
			}
		}
	}
}

// SetOwnLoad tells the own load.
func (b *View) SetOwnLoad(l Load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.self = l
}

// SetPeerLoad takes note of a peer's load.
func (b *View) SetPeerLoad(now policies.Micros, from policies.ReplicaID, l Load) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.peers[from]; e != nil {
		e.load, e.loadedAt, e.hasLoad, e.gone = l, now, true, false
	}
}

// MarkGone takes note that a peer is gone, until it is heard again or is Back.
func (b *View) MarkGone(id policies.ReplicaID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.peers[id]; e != nil {
		e.gone, e.hasLoad = true, false
	}
}

// MarkBack takes note that a peer is there again, with a load that is not known.
func (b *View) MarkBack(id policies.ReplicaID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.peers[id]; e != nil {
		e.gone = false
	}
}

// Available reports whether a peer can be asked to take a request.
func (b *View) Available(now policies.Micros, id policies.ReplicaID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.peers[id]
	return e != nil && b.open(now, e)
}

func (b *View) open(now policies.Micros, e *peerEntry) bool {
	return e.address != "" && !e.draining && !e.gone && !(b.fresh(now, e) && e.load.Draining)
}

func (b *View) fresh(now policies.Micros, e *peerEntry) bool {
	return e.hasLoad && now-e.loadedAt <= b.cfg.MaxAge
}

// ServesModel returns who can run a request for a model's or an adapter's name, or nil
// when everybody can. What it returns may be called at any time.
func (b *View) ServesModel(name string) func(policies.ReplicaID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if adapters := b.adapters; adapters.Restricts(name) {
		return func(id policies.ReplicaID) bool { return adapters.CanServe(id, name) }
	}
	return nil
}

// Address returns where a peer's migrator is reached, "" while unknown.
func (b *View) Address(id policies.ReplicaID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.peers[id]; e != nil {
		return e.address
	}
	return ""
}

// CountFresh counts the peers whose load is known now.
func (b *View) CountFresh(now policies.Micros) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, e := range b.peers {
		if b.fresh(now, e) {
			n++
		}
	}
	return n
}

// placeAtPeer names a peer, and books what it will carry until it is heard again.
func (b *View) placeAtPeer(e *peerEntry, r policies.Request) frontend.Target {
	e.load.Waiting += r.Input
	e.load.Total += r.Length()
	return frontend.Target{Replica: e.id, Address: e.address}
}

// placeHere books what the own replica will carry until it is measured again.
func (b *View) placeHere(r policies.Request) frontend.Target {
	b.self.Waiting += r.Input
	b.self.Total += r.Length()
	return frontend.Target{}
}
