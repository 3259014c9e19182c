package market

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/internal/candidates"
	"github.com/cascadeinfer/cascade/migrator/internal/loadview"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
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
	// up to Config.SummaryMaxAge.
	StageMean policies.Tokens
	MeanAt    time.Time
	// Refine is the input of the Refiner; nil while boundaries are not refined.
	Refine *xds.Refine
}

// Market is one replica's part in the market. Its methods are safe for concurrent use
// and do not block.
type Market struct {
	// Fixed after New.
	cfg   Config
	log   *slog.Logger
	start time.Time
	loads *loadview.View
	wake  chan struct{} // holds a token when the mailbox is not empty

	// Owned by Run's goroutine.
	machine         *bidask.Machine
	selector        *candidates.Selector
	rng             *rand.Rand
	sales           map[string]*sale // by request
	exports         map[bidask.Deal]string
	imports         map[bidask.Deal]policies.Tokens // running transfers to here, with their lengths
	departed        map[string]policies.Micros      // requests that left, and the time until which they do not count as residents
	throughput      throughputMeter
	position        policies.Occupancy // as last measured
	leaving         bool               // nothing new may run here, as last measured
	summarySequence uint64             // of the last summary
	actions         []bidask.Action    // scratch

	mu       sync.Mutex
	mailbox  []bidask.Event
	view     View
	proposal *xds.Proposal
	counts   counts
}

// sale is a request for sale.
type sale struct {
	handover  policies.Migration
	exporting bool
}

// New returns a market without a view: it bids once Run measures the load, and offers nothing
// before SetView. It starts nothing. The error names the invalid field of cfg.
func New(cfg Config) (*Market, error) {
	cfg, err := cfg.validate()
	if err != nil {
		return nil, err
	}
	machine, err := bidask.New(cfg.Machine)
	if err != nil {
		return nil, fmt.Errorf("market of %s: %w", cfg.Self, err)
	}
	book, err := candidates.New(candidates.Config{Self: cfg.Self, Detector: cfg.Detector, BucketEdges: cfg.BucketEdges, Cooldown: micros(cfg.Cooldown), SpillPercent: cfg.SpillPercent})
	if err != nil {
		return nil, fmt.Errorf("market of %s: %w", cfg.Self, err)
	}
	return &Market{
		cfg: cfg, log: cfg.Logger.With("replica", string(cfg.Self)), start: time.Now(), machine: machine, selector: book,
		loads: loadview.New(loadview.Config{Self: cfg.Self, Placer: cfg.Placer, MaxAge: micros(cfg.SummaryMaxAge), SampleSize: cfg.SampleSize, Seed: cfg.Seed}),
		wake:  make(chan struct{}, 1),
		rng:   rand.New(rand.NewPCG(cfg.Seed, 0)),
		sales: make(map[string]*sale), exports: make(map[bidask.Deal]string), imports: make(map[bidask.Deal]policies.Tokens),
		departed: make(map[string]policies.Micros),
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
	m.loads.SetView(v.Plan, v.Peers)
}

// Receive handles a message of a peer and keeps it.
func (m *Market) Receive(from policies.ReplicaID, message *api.Market) {
	msg, ok := decode(from, m.cfg.Self, message)
	m.mu.Lock()
	if ok = ok && len(m.mailbox) < maxMailbox; ok {
		m.counts.received[msg.Kind]++
	} else {
		m.counts.ignored++
	}
	m.mu.Unlock()
	if !ok {
		return
	}
	m.post(bidask.Event{Kind: bidask.MessageReceived, Message: msg})
}

// ReceiveSummary handles a peer's load.
func (m *Market) ReceiveSummary(from policies.ReplicaID, s *api.Summary) {
	held, promised, incoming := policies.Tokens(s.GetHeld()), policies.Tokens(s.GetPromised()), policies.Tokens(s.GetIncoming())
	const most = policies.Unbounded / 4 // the sum of three does not overflow
	running, ok := decodeSequences(s)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !ok || held < 0 || promised < 0 || incoming < 0 || held > most || promised > most || incoming > most {
		m.counts.ignored++
		return
	}
	m.counts.summariesReceived++
	m.loads.SetPeerLoad(m.now(), from, loadview.Load{Waiting: promised, Total: held + promised + incoming, Held: held, Draining: s.GetDraining()})
	m.loads.SetPeerRunning(from, running)
}

// Notify handles a result of the Executor: Reserved, ReservationRefused, TransferDone or
// TransferFailed.
func (m *Market) Notify(ev bidask.Event) { m.post(ev) }

// PeerGone reports that a peer left or died.
func (m *Market) PeerGone(peer policies.ReplicaID) {
	m.loads.MarkGone(peer)
	m.post(bidask.Event{Kind: bidask.PeerGone, Peer: peer})
}

// PeerBack reports that a peer that was gone is back and may be asked again.
func (m *Market) PeerBack(peer policies.ReplicaID) { m.loads.MarkBack(peer) }

func (m *Market) post(ev bidask.Event) {
	m.mu.Lock()
	m.mailbox = append(m.mailbox, ev)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Place implements frontend.Placer.
func (m *Market) Place(r policies.Request) frontend.Target { return m.loads.Place(m.now(), r) }

// Rescue implements frontend.Rescuer.
func (m *Market) Rescue(r policies.Request, tried []policies.ReplicaID) (frontend.Target, bool) {
	return m.loads.Rescue(m.now(), r, tried)
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
	scan, summary, refine := time.NewTicker(m.cfg.ScanInterval), time.NewTicker(m.cfg.SummaryInterval), time.NewTicker(m.cfg.RefineInterval)
	defer scan.Stop()
	defer summary.Stop()
	defer refine.Stop()
	deadline := time.NewTimer(time.Hour)
	defer deadline.Stop()
	for {
		if next, ok := m.machine.Next(); ok {
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
		case <-scan.C:
			m.scan()
		case <-summary.C:
			m.sendSummaries()
		case <-refine.C:
			m.updateProposal()
		}
	}
}

// cancelSales cancels all sales and releases all reservations: this process may continue without a
// market until its streams have ended.
func (m *Market) cancelSales() {
	m.drainMailbox()
	var sales []policies.Migration
	for _, s := range m.sales {
		if !s.exporting {
			sales = append(sales, s.handover)
		}
	}
	for _, h := range sales {
		m.step(bidask.Event{Kind: bidask.Withdrawn, Migration: h})
	}
	m.position.Draining = true
	m.step(bidask.Event{Kind: bidask.OccupancyMeasured, Occupancy: m.position})
}

// drainMailbox handles the events in the mailbox.
func (m *Market) drainMailbox() {
	m.mu.Lock()
	mail := m.mailbox
	m.mailbox = nil
	m.mu.Unlock()
	for _, ev := range mail {
		if ev.Kind == bidask.TransferDone || ev.Kind == bidask.TransferFailed {
			m.recordTransferEnd(ev)
		}
		m.step(ev)
	}
}

// step passes an event to the machine and executes the resulting actions.
func (m *Market) step(ev bidask.Event) {
	ev.Now = m.now()
	m.actions = m.machine.Step(ev, m.actions[:0])
	for _, a := range m.actions {
		m.execute(ev.Now, a)
	}
	clear(m.actions)
}

// execute executes one action.
func (m *Market) execute(now policies.Micros, a bidask.Action) {
	m.countAction(a)
	switch a.Kind {
	case bidask.Send:
		m.cfg.Network.Send(a.Message.To, encode(a.Message))
		return
	case bidask.Return:
		delete(m.sales, a.Migration.Request)
		delete(m.exports, a.Deal)
		m.selector.RecordReturn(now, a.Migration, a.Reason)
		return
	case bidask.Export:
		if s := m.sales[a.Migration.Request]; s != nil {
			s.exporting = true
			m.exports[a.Deal] = a.Migration.Request
		}
	case bidask.Import:
		m.throughput.begin(now)
		m.imports[a.Deal] = a.Migration.Length
	}
	m.cfg.Executor.Execute(a)
}

// recordTransferEnd records the end of a transfer. The machine decides what follows: it returns a
// sale after a failed transfer.
func (m *Market) recordTransferEnd(ev bidask.Event) {
	now, moved := m.now(), ev.Kind == bidask.TransferDone
	if length, ok := m.imports[ev.Deal]; ok {
		delete(m.imports, ev.Deal)
		if !moved {
			length = 0
		}
		m.throughput.end(now, length)
		m.countMove(0, moved, false)
		return
	}
	request, ok := m.exports[ev.Deal]
	if !ok {
		return
	}
	cause := m.sales[request].handover.Cause
	m.countMove(cause, moved, true)
	delete(m.exports, ev.Deal)
	if !moved {
		return
	}
	delete(m.sales, request)
	// The front end may report for another moment that the request runs here.
	m.departed[request] = now + departedRetention
	m.log.Debug("request migrated", "request", request, "cause", cause.String(), "deal", ev.Deal.String())
}

// departedRetention is how long a request that left does not count as a resident, unless it
// disappears from the residents earlier.
const departedRetention = policies.Second

// sampleIDs returns at most n random ids.
func (m *Market) sampleIDs(ids []policies.ReplicaID, n int) []policies.ReplicaID {
	ids = slices.Clone(ids)
	n = min(n, len(ids))
	for i := range n {
		at := i + m.rng.IntN(len(ids)-i)
		ids[i], ids[at] = ids[at], ids[i]
	}
	return ids[:n]
}
