// Package loadview records the loads that peers report and places requests by them: new
// requests, and those whose engine was lost.
//
// It chooses by policies.Placer and by load, from few and slightly old data; running
// requests are rebalanced by the market, which uses it. It adds its own placements to the
// recorded loads, so that a burst of requests does not go to the one replica that was idle
// a second ago.
//
// Peers also say for which prompts they hold KV (Prefixes), so that the Placer can choose
// among the peers that hold most of a request's prompt, wherever they are.
//
// Time is an argument and may be virtual. In production the replicas send each other their
// loads in summaries, every second to samples of their peers; a simulator that models how
// old they are calls SetPeerLoad when a summary would arrive. With the same seed and the
// same calls, a View gives the same answers.
//
// Invariants:
//
//  1. It never returns a replica that drains, is gone or has no address, except this
//     replica when no other is left.
//  2. Place examines a bounded number of replicas, however many there are.
package loadview

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
)

// Defaults and limits.
const (
	DefaultMaxAge     = 3 * policies.Second
	DefaultSampleSize = 8
	maxExamined       = 256 // peers examined for one sample
)

// Config configures a View.
type Config struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// Placer chooses where requests start. nil: all start here.
	Placer policies.Placer
	// Prefill chooses the prefill replica that computes a prompt. nil: none.
	Prefill policies.Placer
	// MaxAge is the age up to which a load counts. 0 means 3 s.
	MaxAge policies.Micros
	// SampleSize is the number of replicas of the right stage, of longer ones and of the next shorter one,
	// that the Placer chooses from, and of prefill replicas for Prefill. 0 means 8.
	SampleSize int
	// Seed seeds the samples.
	Seed uint64
}

// Target is a replica where a request can run. The zero value is this replica.
type Target struct {
	Replica policies.ReplicaID
	Address string // host:port where other migrators reach it; "" for this replica
	// Prefill says that it is a prefill replica, where the request does not stay.
	Prefill bool
	// Cached is how many of the prompt's first tokens a peer is expected to hold.
	Cached policies.Tokens
	// Held is how many of them the replica that has most of the prompt is expected to hold, 0 if that
	// is no more than Cached: the peer may copy them.
	Held policies.Tokens
}

// Load is the load of a replica.
type Load struct {
	Waiting  policies.Tokens // prompts accepted but not yet prefilled
	Total    policies.Tokens // KV in use and promised
	Held     policies.Tokens // KV of running requests
	Running  int             // requests that generate tokens
	Draining bool            // or unable to serve
}

// View is what one replica knows of its peers. It is not safe for concurrent use.
type View struct {
	cfg Config

	plan        policies.Plan
	own         int // index of the replica's stage, −1 for none
	self        Load
	peers       map[policies.ReplicaID]*peerEntry
	adapters    policies.Adapters
	stages      [][]*peerEntry // of the plan, without this replica
	prefill     []*peerEntry   // the prefill replicas, in the order of their ids
	prefillSelf bool           // this is a prefill replica
	ranges      []policies.PrefillRange
	rng         *rand.Rand
	sites       []policies.Candidate // scratch
	forwards    uint64
	holders     int // peers with prefixes
}

// peerEntry is the state of one peer.
type peerEntry struct {
	id       policies.ReplicaID
	address  string
	draining bool // as the control plane says
	planned  bool // it is in the plan
	gone     bool
	load     Load
	loadedAt policies.Micros // of load
	hasLoad  bool            // load is set
	running  []policies.Sequence
	prefixes Prefixes // that it holds; nil: unknown
	stage    int      // of the plan; −1 for none

	// Of a prefill replica.
	capacity policies.Tokens // of its KV cache; 0: unknown
	failures int             // moves from it to here that failed in a row
	retryAt  policies.Micros // no request is placed there earlier, after such a failure
}

// New returns an empty View. The caller has validated c.
func New(c Config) *View {
	if c.MaxAge == 0 {
		c.MaxAge = DefaultMaxAge
	}
	if c.SampleSize == 0 {
		c.SampleSize = DefaultSampleSize
	}
	return &View{cfg: c, own: -1, peers: make(map[policies.ReplicaID]*peerEntry), rng: rand.New(rand.NewPCG(c.Seed, 1))}
}

// SetView sets the plan and the replicas of this replica's model. It keeps both without
// copying them.
func (b *View) SetView(plan policies.Plan, replicas []policies.Replica) {
	named := make(map[policies.ReplicaID]*peerEntry, len(replicas))
	b.prefill, b.prefillSelf = nil, false
	for _, r := range replicas {
		if r.ID == b.cfg.Self {
			b.prefillSelf = r.Prefill
			continue
		}
		e := b.peers[r.ID]
		if e == nil {
			e = &peerEntry{id: r.ID}
		}
		e.address, e.draining, e.planned, e.stage = r.Peer, r.Draining, false, -1
		named[r.ID] = e
		if e.capacity = r.Capacity.KV; r.Prefill {
			b.prefill = append(b.prefill, e)
		}
	}
	slices.SortFunc(b.prefill, func(a, b *peerEntry) int { return strings.Compare(string(a.id), string(b.id)) })
	b.holders = 0
	for _, e := range named {
		if e.prefixes != nil {
			b.holders++
		}
	}
	b.peers, b.plan, b.own = named, plan, plan.StageOfReplica(b.cfg.Self)
	b.adapters = policies.NewAdapters(replicas)
	b.stages = make([][]*peerEntry, len(plan.Stages))
	for k, s := range plan.Stages {
		for _, id := range s.Replicas {
			if e := named[id]; e != nil {
				e.planned, e.stage = true, k
				b.stages[k] = append(b.stages[k], e)
			}
		}
	}
}

// SetOwnLoad sets this replica's load.
func (b *View) SetOwnLoad(l Load) {
	b.self = l
}

// SetPeerLoad sets a peer's load.
func (b *View) SetPeerLoad(now policies.Micros, from policies.ReplicaID, l Load) {
	if e := b.peers[from]; e != nil {
		e.load, e.loadedAt, e.hasLoad, e.gone = l, now, true, false
	}
}

// SetPeerRunning sets the requests that run on a peer, which must not be changed afterwards.
// They are as old as its load.
func (b *View) SetPeerRunning(from policies.ReplicaID, running []policies.Sequence) {
	if e := b.peers[from]; e != nil {
		e.running = running
	}
}

// MarkGone excludes a peer until its load is set again or MarkBack is called.
func (b *View) MarkGone(id policies.ReplicaID) {
	if e := b.peers[id]; e != nil {
		e.gone, e.hasLoad = true, false
		b.setPrefixes(e, nil)
	}
}

// MarkBack readmits a peer, with an unknown load.
func (b *View) MarkBack(id policies.ReplicaID) {
	if e := b.peers[id]; e != nil {
		e.gone = false
	}
}

// Available reports whether a peer can be asked to take a request.
func (b *View) Available(now policies.Micros, id policies.ReplicaID) bool {
	e := b.peers[id]
	return e != nil && b.open(now, e)
}

func (b *View) open(now policies.Micros, e *peerEntry) bool {
	return e.address != "" && !e.draining && !e.gone && !(b.fresh(now, e) && e.load.Draining)
}

func (b *View) fresh(now policies.Micros, e *peerEntry) bool {
	return e.hasLoad && now-e.loadedAt <= b.cfg.MaxAge
}

// ServesModel returns a function that reports which replicas can run a request for the name
// of a model or adapter, or nil if all can. The function may be called at any time.
func (b *View) ServesModel(name string) func(policies.ReplicaID) bool {
	if adapters := b.adapters; adapters.Restricts(name) {
		return func(id policies.ReplicaID) bool { return adapters.CanServe(id, name) }
	}
	return nil
}

// CountFresh counts the peers whose load is known now.
func (b *View) CountFresh(now policies.Micros) int {
	n := 0
	for _, e := range b.peers {
		if b.fresh(now, e) {
			n++
		}
	}
	return n
}

// placeAtPeer returns a peer, and adds the request, of whose prompt it holds that much, to
// its load until the next report.
func (b *View) placeAtPeer(e *peerEntry, r policies.Request, held policies.Tokens) Target {
	e.load.Waiting += max(r.Input-held, 0)
	e.load.Total += r.Length()
	return Target{Replica: e.id, Address: e.address, Cached: held}
}

// placeHere adds the request to this replica's load until the next measurement.
func (b *View) placeHere(r policies.Request) Target {
	b.self.Waiting += max(r.Input-r.Cached, 0)
	b.self.Total += r.Length()
	return Target{}
}
