package place

import (
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/policies"
)

// Defaults and limits.
const (
	MaxAge            = 3 * policies.Second // up to which a load counts
	DefaultSampleSize = 8
	maxExamined       = 256 // peers examined for one sample
	maxNeighbours     = 64  // peers of a stage to which a replica with prices sends its load
	// maxPriced is how many peers of a stage get a price, chosen at random: of more, deciders that have not heard of
	// each other's latest requests all choose the same one. With fewer, the best one is often missing.
	maxPriced = 16
)

// PeersConfig configures Peers.
type PeersConfig struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// Placer chooses where requests start. nil: all start here.
	Placer policies.Placer
	// Prefill chooses the prefill replica that computes a prompt. nil: none.
	Prefill policies.Placer
	// SampleSize is the number of replicas of the right stage, of longer ones and of the next shorter one,
	// that the Placer chooses from, and of prefill replicas for Prefill. 0 means 8. With Engine it is 16.
	SampleSize int
	// Engine is that of all replicas, for the prices of candidates; nil: they have none.
	Engine *Engine
	// CopySeconds is how long the KV of a token is copied from another replica; 0: none is copied.
	CopySeconds float64
	// Reprompt says that the KV of a request that moves is not copied: its new replica computes it.
	Reprompt bool
	// Seed seeds the samples.
	Seed uint64
}

// PeerLoad is the load of a replica.
type PeerLoad struct {
	Waiting  policies.Tokens // prompts accepted but not yet prefilled
	Total    policies.Tokens // KV in use and promised
	Held     policies.Tokens // KV of running requests
	Running  int             // requests that generate tokens
	Draining bool            // or unable to serve
}

// Peers is what one replica knows of its peers, and places requests by: new ones, and those whose
// engine was lost. It chooses by policies.Placer and by load, from few and slightly old data. It adds
// its own placements to the recorded loads, so that a burst of requests does not go to the one replica
// that was idle a second ago. Peers also say for which prompts they hold KV (Prefixes), so that the
// Placer can choose among the peers that hold most of a request's prompt, wherever they are.
//
// Time is an argument and may be virtual. In production the replicas send each other their loads in
// summaries, every second to samples of their peers; a simulator that models how old they are calls
// SetPeerLoad when a summary would arrive. With the same seed and the same calls, it gives the same
// answers. It is not safe for concurrent use.
//
// Invariants:
//
//  1. It never returns a replica that drains, is gone or has no address, except this replica when no
//     other is left.
//  2. Place examines a bounded number of replicas, however many there are.
type Peers struct {
	cfg PeersConfig

	plan        policies.Plan
	own         int // index of the replica's stage, −1 for none
	self        PeerLoad
	peers       map[policies.ReplicaID]*peerEntry
	adapters    policies.Adapters
	stages      [][]*peerEntry // of the plan, without this replica
	prefill     []*peerEntry   // the prefill replicas, in the order of their ids
	prefillSelf bool           // this is a prefill replica
	host        string         // of this replica; "" unknown
	ranges      []policies.PrefillRange
	rng         *rand.Rand
	sites       []policies.Candidate // scratch
	forwards    uint64
	holders     int // peers with prefixes
	outputs     Outputs
	view        *View // of this replica
	ownState    State // as last set, without its requests
	calibration Calibration
	loadError   loadError
	pricing     Pricing // scratch
	search      moveSearch
}

// peerEntry is the state of one peer.
type peerEntry struct {
	id       policies.ReplicaID
	address  string
	host     string // "" unknown
	draining bool   // as the control plane says
	planned  bool   // it is in the plan
	gone     bool
	load     PeerLoad
	loadedAt policies.Micros // of load
	hasLoad  bool            // load is set
	running  []policies.Sequence
	prefixes Prefixes // that it holds; nil: unknown
	stage    int      // of the plan; −1 for none
	view     *View

	// Of a prefill replica.
	capacity policies.Tokens // of its KV cache; 0: unknown
	failures int             // moves from it to here that failed in a row
	retryAt  policies.Micros // no request is placed there earlier, after such a failure
}

// NewPeers returns Peers that know nothing. The caller has validated c.
func NewPeers(c PeersConfig) *Peers {
	if c.SampleSize == 0 {
		c.SampleSize = DefaultSampleSize
	}
	b := &Peers{cfg: c, own: -1, peers: make(map[policies.ReplicaID]*peerEntry), rng: rand.New(rand.NewPCG(c.Seed, 1))}
	b.view = b.newView()
	return b
}

// newView returns the view of a replica of which nothing is known; nil if there are no prices.
func (b *Peers) newView() *View {
	if b.cfg.Engine == nil {
		return nil
	}
	return NewView(*b.cfg.Engine, 0)
}

// SetView sets the plan and the replicas of this replica's model. It keeps both without
// copying them.
func (b *Peers) SetView(plan policies.Plan, replicas []policies.Replica) {
	named := make(map[policies.ReplicaID]*peerEntry, len(replicas))
	b.prefill, b.prefillSelf, b.host = nil, false, ""
	for _, r := range replicas {
		if r.ID == b.cfg.Self {
			b.prefillSelf, b.host = r.Prefill, r.Host
			continue
		}
		e := b.peers[r.ID]
		if e == nil {
			e = &peerEntry{id: r.ID, view: b.newView()}
		}
		e.address, e.host, e.draining, e.planned, e.stage = r.Peer, r.Host, r.Draining, false, -1
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
func (b *Peers) SetOwnLoad(l PeerLoad) {
	b.self = l
}

// SetPeerLoad sets a peer's load.
func (b *Peers) SetPeerLoad(now policies.Micros, from policies.ReplicaID, l PeerLoad) {
	if e := b.peers[from]; e != nil {
		e.load, e.loadedAt, e.hasLoad, e.gone = l, now, true, false
	}
}

// SetPeerRunning sets the requests that run on a peer, which must not be changed afterwards.
// They are as old as its load.
func (b *Peers) SetPeerRunning(from policies.ReplicaID, running []policies.Sequence) {
	if e := b.peers[from]; e != nil {
		e.running = running
	}
}

// MarkGone excludes a peer until its load is set again or MarkBack is called.
func (b *Peers) MarkGone(id policies.ReplicaID) {
	if e := b.peers[id]; e != nil {
		e.gone, e.hasLoad = true, false
		b.setPrefixes(e, nil)
	}
}

// MarkBack readmits a peer, with an unknown load.
func (b *Peers) MarkBack(id policies.ReplicaID) {
	if e := b.peers[id]; e != nil {
		e.gone = false
	}
}

// Available reports whether a peer can be asked to take a request.
func (b *Peers) Available(now policies.Micros, id policies.ReplicaID) bool {
	e := b.peers[id]
	return e != nil && b.open(now, e)
}

func (b *Peers) open(now policies.Micros, e *peerEntry) bool {
	return e.address != "" && !e.draining && !e.gone && !(b.fresh(now, e) && e.load.Draining)
}

func (b *Peers) fresh(now policies.Micros, e *peerEntry) bool {
	return e.hasLoad && now-e.loadedAt <= MaxAge
}

// ServesModel returns a function that reports which replicas can run a request for the name
// of a model or adapter, or nil if all can. The function may be called at any time.
func (b *Peers) ServesModel(name string) func(policies.ReplicaID) bool {
	if adapters := b.adapters; adapters.Restricts(name) {
		return func(id policies.ReplicaID) bool { return adapters.CanServe(id, name) }
	}
	return nil
}

// CountFresh counts the peers whose load is known now.
func (b *Peers) CountFresh(now policies.Micros) int {
	n := 0
	for _, e := range b.peers {
		if b.fresh(now, e) {
			n++
		}
	}
	return n
}

// placeAtPeer returns a peer, and adds the request, of whose prompt it holds that much, to
// its load until the next report. Each prompt of a list counts as long as the longest one.
func (b *Peers) placeAtPeer(now policies.Micros, e *peerEntry, r policies.Request,
	held policies.Tokens) policies.Target {
	prompts := policies.Tokens(max(r.Prompts, 1))
	e.load.Waiting += prompts * max(r.Input-held, 0)
	e.load.Total += prompts * r.Length()
	if e.view != nil {
		e.view.Send(now, b.arrival(now, &r, held, b.longestHeld(r), b.expect(&r)))
	}
	return policies.Target{Replica: e.id, Address: e.address, Cached: held}
}

// placeHere adds the request to this replica's load until the next measurement.
func (b *Peers) placeHere(now policies.Micros, r policies.Request) policies.Target {
	prompts := policies.Tokens(max(r.Prompts, 1))
	b.self.Waiting += prompts * max(r.Input-r.Cached, 0)
	b.self.Total += prompts * r.Length()
	if b.view != nil {
		b.view.Send(now, b.arrival(now, &r, r.Cached, b.longestHeld(r), b.expect(&r)))
	}
	return policies.Target{}
}

// StageMean returns the mean of the tokens that the replicas of the own stage hold, this one
// included. ok is false unless most of them, or as many as a sample, have a recent load.
func (b *Peers) StageMean(now policies.Micros) (mean policies.Tokens, ok bool) {
	if b.own < 0 {
		return 0, false
	}
	sum, heard, others := b.self.Held, 0, 0
	for _, e := range b.stages[b.own] {
		if !b.open(now, e) {
			continue
		}
		others++
		if b.fresh(now, e) {
			heard++
			sum += e.load.Held
		}
	}
	if 2*heard < others && heard < b.cfg.SampleSize {
		return 0, false
	}
	return sum / policies.Tokens(heard+1), true
}

// Successors returns the requests that run on the replicas of the next stage, as far as these
// have sent them lately, and the number of these replicas.
func (b *Peers) Successors(now policies.Micros) (running []policies.Sequence, replicas int) {
	if b.own < 0 || b.own+1 >= len(b.stages) {
		return nil, 0
	}
	for _, e := range b.stages[b.own+1] {
		if b.fresh(now, e) && e.running != nil {
			running = append(running, e.running...)
			replicas++
		}
	}
	return running, replicas
}

// SampleNeighbours returns the peers to which this replica sends its load next: random samples of its stage, of the
// stage before, whose requests grow into this one, and of all others. Each has SampleSize peers at most, with Engine 64.
// A prefill replica, where every front end may place requests, sends it to more of the others.
func (b *Peers) SampleNeighbours() (stage, before, others []policies.ReplicaID) {
	for k, entries := range b.stages {
		for _, e := range entries {
			switch {
			case e.address == "":
			case k == b.own:
				stage = append(stage, e.id)
			case k == b.own-1:
				before = append(before, e.id)
			default:
				others = append(others, e.id)
			}
		}
	}
	for id, e := range b.peers {
		if e.address != "" && !e.planned {
			others = append(others, id)
		}
	}
	slices.Sort(others) // in an order that does not depend on the map's
	more := 1
	if b.prefillSelf {
		more = prefillSummaries
	}
	return b.sample(stage, 1), b.sample(before, 1), b.sample(others, more)
}

// neighbourSize is to how many peers of a stage a replica sends its load. It is more than get a price (sampleSize), for
// each front end chooses others.
func (b *Peers) neighbourSize() int {
	if b.cfg.Engine != nil {
		return maxNeighbours
	}
	return b.cfg.SampleSize
}

// prefillSummaries is how many times as many others a prefill replica sends its load to.
const prefillSummaries = 8

// sample returns random ids, at most times neighbourSize. It changes their order.
func (b *Peers) sample(ids []policies.ReplicaID, times int) []policies.ReplicaID {
	n := min(times*b.neighbourSize(), len(ids))
	for i := range n {
		at := i + b.rng.IntN(len(ids)-i)
		ids[i], ids[at] = ids[at], ids[i]
	}
	return ids[:n]
}
