package market

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// View is the part of the control plane's state that concerns a replica.
type View struct {
	// Plan is the plan of the replica's model; the zero Plan if there is none.
	Plan policies.Plan
	// Peers are the replicas of the model with their peer addresses, possibly including
	// this one.
	Peers []policies.Replica
	// Draining reports whether this replica is to be emptied.
	Draining bool
	// Retired reports whether another process serves the replica. If so, this process sells its
	// remaining requests, but neither buys, nor sends its load, nor proposes boundaries.
	Retired bool
	// StageMean is the mean of Load.Held over this replica's stage as of MeanAt, as the control
	// plane knows it; a zero MeanAt: unknown. It is used while the peers' summaries give none,
	// up to place.MaxAge.
	StageMean policies.Tokens
	MeanAt    time.Time
	// Refine is the input of the Refiner; nil while boundaries are not refined.
	Refine *xds.Refine
	// PrefillRanges is which prompts the prefill replicas are meant for; nil: all are for all.
	PrefillRanges []policies.PrefillRange
}

// Market is one replica's part in the market. Its methods are safe for concurrent use
// and do not block.
type Market struct {
	// Fixed after New.
	cfg   Config
	start time.Time
	peers *peers
	wake  chan struct{} // holds a token when the mailbox is not empty
	// arrival holds a token when requests have arrived of which peers do not know.
	arrival chan struct{}

	// Owned by Run's goroutine.
	trader          *bidask.Trader
	leaving         bool              // nothing new may run here, as last measured
	summarySequence uint64            // of the last summary
	actions         []bidask.Action   // scratch
	residents       []bidask.Resident // scratch
	prefixes        []byte            // what this replica holds, as sent last; not changed afterwards
	prefixVersion   uint64            // of prefixes
	state           place.State       // of this replica, as of the last scan
	living          []place.Resident  // scratch

	mu       sync.Mutex
	mailbox  []bidask.Event
	view     View
	proposal *xds.Proposal
	status   Status // without what Status asks the peers
	arrived  arrivals
	sent     map[policies.ReplicaID]sentPrefixes // by peer, the last
}

// peers is a load view that several goroutines use.
type peers struct {
	mu   sync.Mutex
	view *place.Peers
}

// do calls use with the view while no other goroutine uses it.
func (p *peers) do(use func(*place.Peers)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	use(p.view)
}

// SetOwnLoad implements bidask.Peers.
func (p *peers) SetOwnLoad(l place.PeerLoad) { p.do(func(v *place.Peers) { v.SetOwnLoad(l) }) }

// StageMean implements bidask.Peers.
func (p *peers) StageMean(now policies.Micros) (mean policies.Tokens, ok bool) {
	p.do(func(v *place.Peers) { mean, ok = v.StageMean(now) })
	return mean, ok
}

// Available implements bidask.Peers.
func (p *peers) Available(now policies.Micros, id policies.ReplicaID) (ok bool) {
	p.do(func(v *place.Peers) { ok = v.Available(now, id) })
	return ok
}

// FindMove implements bidask.Peers.
func (p *peers) FindMove(now policies.Micros, q place.MoveQuery) (move place.Move, ok bool) {
	p.do(func(v *place.Peers) { move, ok = v.FindMove(now, q) })
	return move, ok
}

// IsPrefill implements bidask.Peers.
func (p *peers) IsPrefill() (is bool) {
	p.do(func(v *place.Peers) { is = v.IsPrefill() })
	return is
}

// RecordPrefillMove implements bidask.Peers.
func (p *peers) RecordPrefillMove(now policies.Micros, from policies.ReplicaID, moved bool) {
	p.do(func(v *place.Peers) { v.RecordPrefillMove(now, from, moved) })
}

// New returns a market without a view: it bids once Run measures the load, and offers nothing
// before SetView. It starts nothing. The error names the invalid field of cfg.
func New(cfg Config) (*Market, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	seed := balance.Hash(string(cfg.Self)) // replicas that chose alike would all choose the same peers
	p := &peers{view: place.NewPeers(place.PeersConfig{
		Self: cfg.Self, Placer: cfg.Placer, Prefill: cfg.Prefill, Engine: cfg.Engine, CopySeconds: cfg.CopySeconds, Reprompt: cfg.Reprompt, Seed: seed,
	})}
	t, err := bidask.NewTrader(bidask.TraderConfig{
		OfferRules: bidask.OfferRules{
			Self: cfg.Self, Detector: cfg.Detector, BucketEdges: cfg.BucketEdges, SpillPercent: cfg.SpillPercent,
		},
		Peers: p, Machine: cfg.Machine, KeepRequests: cfg.KeepRequests, MigrationCost: cfg.MigrationCost, Seed: seed,
	})
	if err != nil {
		return nil, fmt.Errorf("market of %s: %w", cfg.Self, err)
	}
	return &Market{
		cfg: cfg, start: time.Now(), peers: p, trader: t,
		wake: make(chan struct{}, 1), arrival: make(chan struct{}, 1),
		sent: make(map[policies.ReplicaID]sentPrefixes),
	}, nil
}

// now returns the market's time.
func (m *Market) now() policies.Micros { return micros(time.Since(m.start)) }

func micros(d time.Duration) policies.Micros { return policies.Micros(d.Microseconds()) }

// SetView sets the state of the control plane. The market keeps v; the caller must not change it
// afterwards.
func (m *Market) SetView(v View) {
	m.mu.Lock()
	m.view = v
	m.mu.Unlock()
	m.peers.do(func(known *place.Peers) {
		known.SetView(v.Plan, v.Peers)
		known.SetPrefillRanges(v.PrefillRanges)
	})
}

// Receive handles a message of a peer and keeps it.
func (m *Market) Receive(from policies.ReplicaID, message *api.Market) {
	msg, ok := decode(from, m.cfg.Self, message)
	m.mu.Lock()
	if ok = ok && len(m.mailbox) < maxMailbox; ok {
		m.status.Received[msg.Kind]++
	} else {
		m.status.Ignored++
	}
	m.mu.Unlock()
	if !ok {
		return
	}
	m.post(bidask.Event{Kind: bidask.MessageReceived, Message: msg})
}

// ReceiveSummary handles a peer's load.
func (m *Market) ReceiveSummary(from policies.ReplicaID, s *api.Summary) {
	held, promised := policies.Tokens(s.GetHeld()), policies.Tokens(s.GetPromised())
	incoming, cached := policies.Tokens(s.GetIncoming()), policies.Tokens(s.GetCached())
	const most = policies.Unbounded / 4 // the sum of three does not overflow
	running, ok := decodeSequences(s)
	state, valid := decodeState(m.now(), s)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ok || !valid || min(held, promised, incoming, cached) < 0 || max(held, promised, incoming) > most {
		m.status.Ignored++
		return
	}
	m.status.SummariesReceived++
	m.peers.do(func(v *place.Peers) {
		v.SetPeerLoad(m.now(), from, place.PeerLoad{
			Waiting: max(promised-cached, 0), Total: held + promised + incoming, Held: held,
			Running: int(s.GetRunning()), Draining: s.GetDraining(),
		})
		v.SetPeerRunning(from, running)
		v.SetPeerState(m.now(), from, &state)
	})
	m.receivePrefixesLocked(from, s.GetPrefixes())
}

// Notify handles a result of the Executor: Reserved, ReservationRefused, TransferDone or
// TransferFailed.
func (m *Market) Notify(ev bidask.Event) { m.post(ev) }

// PeerGone reports that a peer left or died.
func (m *Market) PeerGone(peer policies.ReplicaID) {
	m.forgetSentPrefixes(peer)
	m.peers.do(func(v *place.Peers) { v.MarkGone(peer) })
	m.post(bidask.Event{Kind: bidask.PeerGone, Peer: peer})
}

// PeerBack reports that a peer that was gone is back and may be asked again.
func (m *Market) PeerBack(peer policies.ReplicaID) {
	m.forgetSentPrefixes(peer)
	m.peers.do(func(v *place.Peers) { v.MarkBack(peer) })
}

func (m *Market) post(ev bidask.Event) {
	m.mu.Lock()
	m.mailbox = append(m.mailbox, ev)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Prefills implements frontend.Placer.
func (m *Market) Prefills() (may bool) {
	m.peers.do(func(v *place.Peers) { may = v.Prefills() })
	return may
}

// RecordPrefill records whether the own engine has fetched the KV of a prompt that a prefill
// replica computed; see frontend.Config.OnPrefill.
func (m *Market) RecordPrefill(from policies.ReplicaID, fetched bool) {
	m.peers.do(func(v *place.Peers) { v.RecordPrefillMove(m.now(), from, fetched) })
}

// HasHolders implements frontend.Placer.
func (m *Market) HasHolders() (has bool) {
	m.peers.do(func(v *place.Peers) { has = v.Holders() > 0 })
	return has
}

// Place implements frontend.Placer.
func (m *Market) Place(r policies.Request, steps []prefix.Step) (at policies.Target) {
	m.peers.do(func(v *place.Peers) { at = v.Place(m.now(), r, steps) })
	return at
}

// LongestPrefix implements frontend.PrefixHolders.
func (m *Market) LongestPrefix(steps []prefix.Step) (at policies.Target, held policies.Tokens) {
	m.peers.do(func(v *place.Peers) { at, held = v.LongestPrefix(steps) })
	return at, held
}

// Rescue implements frontend.Rescuer.
func (m *Market) Rescue(r policies.Request, tried []policies.ReplicaID) (at policies.Target, ok bool) {
	m.peers.do(func(v *place.Peers) { at, ok = v.Rescue(m.now(), r, tried) })
	return at, ok
}

var (
	_ frontend.Placer  = (*Market)(nil)
	_ frontend.Rescuer = (*Market)(nil)
)

// Run trades until ctx ends and returns nil then. Running transfers continue; other sales
// and purchases are cancelled. It may be called once.
func (m *Market) Run(ctx context.Context) error {
	defer m.cancelSales()
	m.scan()
	scan := time.NewTicker(m.cfg.ScanInterval)
	defer scan.Stop()
	summary := time.NewTicker(m.cfg.SummaryInterval)
	defer summary.Stop()
	refine := time.NewTicker(m.cfg.RefineInterval)
	defer refine.Stop()
	arrivals := time.NewTimer(time.Hour)
	arrivals.Stop()
	defer arrivals.Stop()
	arrivalsDue := false
	deadline := time.NewTimer(time.Hour)
	defer deadline.Stop()
	for {
		if next, ok := m.trader.Next(); ok {
			deadline.Reset(max(0, time.Duration(next-m.now())*time.Microsecond))
		} else {
			deadline.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
			m.drainMailbox()
		case <-deadline.C:
			m.step(bidask.Event{Kind: bidask.DeadlineReached})
		case <-m.arrival:
			if !arrivalsDue {
				arrivalsDue = true
				arrivals.Reset(arrivalsInterval)
			}
		case <-arrivals.C:
			arrivalsDue = false
			m.sendArrivals()
		case <-scan.C:
			m.scan()
		case <-summary.C:
			m.sendSummaries()
		case <-refine.C:
			m.updateProposal()
		}
	}
}

// arrivalsInterval is how long arrivals are collected before they are sent to the peers. With 20 ms instead of 2
// several front ends send a burst to the same replica.
const arrivalsInterval = 2 * time.Millisecond

// cancelSales cancels all sales and releases all reservations: this process may continue without a
// market until its streams have ended.
func (m *Market) cancelSales() {
	m.drainMailbox()
	m.execute(m.trader.Close(m.now(), m.actions[:0]))
}

// drainMailbox handles the events in the mailbox.
func (m *Market) drainMailbox() {
	m.mu.Lock()
	mail := m.mailbox
	m.mailbox = nil
	m.mu.Unlock()
	for _, ev := range mail {
		m.step(ev)
	}
}

// step passes an event to the trader and executes the resulting actions.
func (m *Market) step(ev bidask.Event) {
	ev.Now = m.now()
	m.execute(m.trader.Step(ev, m.actions[:0]))
}

// execute executes the trader's actions, and keeps their memory.
func (m *Market) execute(actions []bidask.Action) {
	for _, a := range actions {
		switch a.Kind {
		case bidask.Send:
			m.cfg.Network.Send(a.Message.To, encode(a.Message))
		case bidask.Return:
		default:
			m.cfg.Executor.Execute(a)
		}
	}
	clear(actions)
	m.actions = actions
	m.recordDeals()
}
