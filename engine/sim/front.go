package sim

import (
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// front is one replica's migrator: what migrator/market is in production, around the same trader and
// the same view of the peers' loads.
type front struct {
	id       policies.ReplicaID
	replica  *replica
	stage    int // in the plan in force
	weight   uint32
	counter  *partition.FlowCounter
	seen     uint64
	texts    texts // that it has served, where that is all it knows
	peers    *place.Peers
	trader   *bidask.Trader
	ledger   admission.Ledger // of the work that its engine has admitted
	reserved map[bidask.Deal]*batch.Reservation
	mailbox  []bidask.Event // to be handled from next on
	next     int
	stepping bool
	wakeAt   time.Duration // of the next deadline event
	// tokens and seconds are those since the last report: their quotient is the iteration time.
	tokens, seconds float64
	proposal        partition.BoundaryProposal
	// down and draining are what proxies and the control plane know of the replica.
	down, draining bool
	reported       planner.ReplicaView // its last report
	reportedAt     policies.Micros
	// mean is the mean of the tokens that the replicas of the stage hold, from the reply to its report.
	mean      policies.Tokens
	meanKnown bool
}

// describe fills in what the control plane knows besides the last report.
func (f *front) describe(r *planner.ReplicaView) {
	r.Stage, r.Ready, r.Leaving, r.DrainOrdered, r.Draining = f.stage, !f.down && !f.draining, f.draining, f.draining, f.draining
	r.Seen = f.seen
}

func (c *cascade) newFront(id policies.ReplicaID, r *replica, seed uint64) (*front, error) {
	config := place.PeersConfig{Self: id, Placer: c.placer(), Prefill: place.Prefill{}, SampleSize: sampleSize, Seed: seed}
	if c.priced {
		e, profile := engineOf(&c.sim.cfg), &c.sim.cfg.Profile
		if config.Engine = &e; c.pull && profile.LinkRate > 0 {
			config.CopySeconds = float64(profile.KVBytesPerToken) / profile.LinkRate
		}
	}
	peers := place.NewPeers(config)
	market, err := bidask.NewTrader(c.marketOf(id, peers, c.edges, seed, r.life))
	if err != nil {
		return nil, err
	}
	return &front{
		id: id, replica: r, stage: -1, weight: balance.NeutralWeight, counter: partition.NewFlowCounter(c.edges, c.window().Seconds()),
		peers: peers, trader: market, ledger: c.newLedger(), reserved: map[bidask.Deal]*batch.Reservation{},
	}, nil
}

// frontOf returns the front end of a replica.
func (c *cascade) frontOf(id policies.ReplicaID) *front { return c.fronts[c.index[id]] }

// measure returns the present situation of a replica, without its residents.
func (c *cascade) measure(f *front) bidask.Situation {
	load := f.replica.load()
	load.Engine = policies.EngineLoad{Capacity: c.sim.cfg.KVTokens, KVUsed: f.replica.usedKV()}
	return bidask.Situation{Load: load, Ready: true, CanReceive: true, Draining: f.draining, Plan: c.plan, Mean: f.mean, MeanKnown: f.meanKnown}
}

// scan lets a trader examine the requests that run on its replica. Without the market the front end
// only measures its load.
func (c *cascade) scan(f *front) {
	s := c.measure(f)
	if c.priced && !f.replica.failed {
		c.describeState(f)
		f.peers.SetOwnState(c.now(), &c.state, c.living)
	}
	switch {
	case f.replica.failed:
	case c.market:
		list := f.replica.resident
		if s.Priced = c.priced; s.Priced {
			list = c.queue
		}
		s.Residents = c.listResidents(list)
		c.execute(f, f.trader.Scan(c.now(), &s, nil))
	default:
		f.peers.SetOwnLoad(f.trader.OwnLoad(&s))
	}
	interval := scanInterval
	if f.replica.index < c.sim.cfg.PrefillReplicas {
		interval = prefillScanInterval
	}
	c.sim.queue.push(event{at: c.sim.now + interval, kind: scan, index: int32(f.replica.index)})
}

// listResidents describes a replica's requests for a scan. The next call overwrites it.
func (c *cascade) listResidents(list []*request) []bidask.Resident {
	c.residents = c.residents[:0]
	for _, q := range list {
		if q.id == "" {
			q.id = strconv.FormatUint(q.index, 10)
		}
		c.residents = append(c.residents, bidask.Resident{
			Request:  policies.Request{ID: q.id, Input: q.Input, Cached: q.hit, Output: policies.Tokens(q.tokens)},
			FrontEnd: c.fronts[q.front].id, Epoch: q.epoch, Since: q.since, Waiting: q.resumed,
		})
	}
	return c.residents
}

// summarise sends a replica's load to samples of its stage, of the stage before and of the others. While
// boundaries are refined, the stage before also gets the running requests.
func (c *cascade) summarise(f *front) {
	c.sim.queue.push(event{at: c.sim.now + summaryInterval, kind: summary, index: int32(f.replica.index)})
	if f.replica.failed {
		return
	}
	s := c.measure(f)
	load, now := f.trader.OwnLoad(&s), c.now()
	if f.replica.holdings != nil {
		f.replica.holdings.forgetBefore(c.sim.now - maxSummaryAge)
	}
	if c.priced {
		c.flushArrivals(f.replica.index)
		c.describeState(f)
		f.peers.SetOwnState(now, &c.state, c.living)
	}
	send := func(to []policies.ReplicaID, running []policies.Sequence) {
		for _, id := range to {
			if c.frontOf(id).replica.failed {
				continue
			}
			peers := c.frontOf(id).peers
			peers.SetPeerLoad(now, f.id, load)
			if c.priced {
				peers.SetPeerState(now, f.id, &c.state)
			}
			peers.SetPeerRunning(f.id, running)
			if held := f.replica.holdings; held != nil {
				peers.SetPeerPrefixes(f.id, snapshot{held, c.sim.now})
			}
		}
	}
	stage, before, others := f.peers.SampleNeighbours()
	send(stage, nil)
	send(others, nil)
	if c.paper && len(before) > 0 {
		send(before, sequences(f.replica))
	} else {
		send(before, nil)
	}
}

// sequences returns the requests that run on a replica; not nil.
func sequences(r *replica) []policies.Sequence {
	out := make([]policies.Sequence, 0, len(r.resident))
	for _, q := range r.resident {
		if q.tokens > 0 {
			out = append(out, policies.Sequence{Input: q.Input, Length: q.length()})
		}
	}
	return out
}

// post passes an event to a front's trader and executes what follows from it.
func (c *cascade) post(f *front, ev bidask.Event) {
	if f.replica.failed || f != c.fronts[f.replica.index] {
		return // nothing runs there, or another process
	}
	f.mailbox = append(f.mailbox, ev)
	if !f.stepping {
		c.execute(f, nil)
	}
}

// execute executes a trader's actions, and those of the events that they post.
func (c *cascade) execute(f *front, actions []bidask.Action) {
	f.stepping = true
	for {
		for i := range actions {
			c.executeAction(f, &actions[i])
		}
		if f.next == len(f.mailbox) {
			break
		}
		ev := f.mailbox[f.next]
		f.next++
		ev.Now = c.now()
		actions = f.trader.Step(ev, actions[:0])
	}
	f.stepping, f.mailbox, f.next = false, f.mailbox[:0], 0
	if next, ok := f.trader.Next(); ok {
		c.wake(f, time.Duration(next)*time.Microsecond)
	}
}

// executeAction executes one action of a front's trader.
func (c *cascade) executeAction(f *front, a *bidask.Action) {
	switch a.Kind {
	case bidask.Send:
		m := a.Message
		m.From = f.id
		c.sim.queue.push(event{at: c.sim.now + messageDelay, kind: message, arg: &m})
	case bidask.Reserve:
		c.reserve(f, a)
	case bidask.Release:
		c.release(f, a.Deal)
	case bidask.Import:
		c.startTransfer(f, a)
	case bidask.Abort:
		if t := c.running[a.Deal]; t != nil {
			c.sim.mover.fail(t)
		}
	case bidask.Export, bidask.Return: // the buyer pulls; the trader has recorded the return
	}
}

// wake schedules a front's next deadline, unless one is scheduled that is not later.
func (c *cascade) wake(f *front, at time.Duration) {
	at = max(at, c.sim.now+time.Microsecond)
	if f.wakeAt > c.sim.now && f.wakeAt <= at {
		return
	}
	f.wakeAt = at
	c.sim.queue.push(event{at: at, kind: deadline, index: int32(f.replica.index)})
}

// reachDeadline steps a front's trader if its deadline has come.
func (c *cascade) reachDeadline(f *front) {
	next, ok := f.trader.Next()
	switch {
	case !ok:
	case next <= c.now():
		c.post(f, bidask.Event{Kind: bidask.DeadlineReached})
	default:
		c.wake(f, time.Duration(next)*time.Microsecond)
	}
}

// deliver hands a message to its receiver.
func (c *cascade) deliver(m *bidask.Message) {
	if i, ok := c.index[m.To]; ok {
		c.post(c.fronts[i], bidask.Event{Kind: bidask.MessageReceived, Message: *m})
	}
}

// moves counts what became of running requests, by the counts of the traders.
func (c *cascade) moves() Moves {
	m, links := c.past, c.sim.mover.moves()
	m.Tokens, m.StallSeconds, m.Rescued = links.Tokens, links.StallSeconds, c.rescued
	m.Pulls, m.PulledTokens = c.pulls, c.pulledTokens
	for _, f := range c.fronts {
		m.add(f)
	}
	return m
}

// add adds the counts of a front end.
func (m *Moves) add(f *front) {
	x := f.trader.Counts()
	m.Placed += f.peers.Forwards()
	m.Offered += sum(x.Offered[:])
	m.Messages += sum(x.Sent[:])
	m.Moved += x.MovedIn
	m.Failed += x.FailedIn
	m.Growth += x.MovedOut[policies.Growth]
	m.Outlier += x.MovedOut[policies.Outlier]
	m.Cheaper += x.MovedOut[policies.Cheaper]
	m.Spill += x.MovedOut[policies.Spill]
	m.Prefill += x.MovedOut[policies.Prefill]
	m.Drain += x.MovedOut[policies.Drain]
}

func sum(counts []uint64) (total uint64) {
	for _, n := range counts {
		total += n
	}
	return total
}
