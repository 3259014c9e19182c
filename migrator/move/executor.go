package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Executor executes one replica's migrations. Its methods are safe for concurrent use.
type Executor struct {
	cfg Config
	log *slog.Logger

	mu      sync.Mutex
	inbox   []func() // functions to run on Run's goroutine, in order
	closed  bool     // Run has returned
	started bool
	ready   chan struct{} // holds a token when the inbox is not empty

	workers sync.WaitGroup

	// Only Run's goroutine uses these fields, except that its workers read ctx.
	ctx     context.Context // Run's context, for jobs
	start   time.Time
	machine *Machine
	queues  map[key]*jobQueue
	exports map[bidask.Deal]*exportJob
	imports map[bidask.Deal]*importJob
	closing map[*importJob]bool // released, but the release job, which closes the puller, has not finished

	records records
}

// New returns an executor that does nothing before Run.
func New(c Config) (*Executor, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	return &Executor{cfg: c, log: c.Logger, ready: make(chan struct{}, 1), machine: newMachine(c.Limits),
		queues: map[key]*jobQueue{}, exports: map[bidask.Deal]*exportJob{}, imports: map[bidask.Deal]*importJob{}, closing: map[*importJob]bool{}, records: newRecords(c)}, nil
}

// Run executes migrations until ctx ends and returns nil then. It leaves migrations in progress as
// they are: the engine's state for them ends with its session. Run may be called once.
func (m *Executor) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		stop()
		return errors.New("internal error: Executor.Run called twice")
	}
	m.started = true
	m.mu.Unlock()
	m.ctx, m.start = ctx, time.Now()
	defer func() {
		m.mu.Lock()
		m.closed, m.inbox = true, nil
		m.mu.Unlock()
		stop()
		m.workers.Wait()
		for _, in := range m.imports {
			in.close()
		}
		for in := range m.closing {
			in.close()
		}
	}()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		m.mu.Lock()
		todo := m.inbox
		m.inbox = nil
		m.mu.Unlock()
		for _, f := range todo {
			f()
		}
		if at, ok := m.machine.Next(); ok {
			timer.Reset(time.Until(m.start.Add(time.Duration(at) * time.Microsecond)))
		} else {
			timer.Stop()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.ready:
		case <-timer.C:
			m.step(Event{Kind: Ticked})
		}
	}
}

// post queues f for Run's goroutine. It returns false once Run has ended.
func (m *Executor) post(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.postLocked(f)
}

func (m *Executor) postLocked(f func()) bool {
	if m.closed {
		return false
	}
	m.inbox = append(m.inbox, f)
	select {
	case m.ready <- struct{}{}:
	default:
	}
	return true
}

// now returns the state machine's time, rounded up to a whole microsecond, so that a
// deadline is due when its timer fires.
func (m *Executor) now() policies.Micros {
	return policies.Micros((time.Since(m.start) + time.Microsecond - 1) / time.Microsecond)
}

// clockTime converts the machine's time to wall-clock time.
func (m *Executor) clockTime(t policies.Micros) time.Time {
	return m.start.Add(time.Duration(t) * time.Microsecond)
}

// Execute executes an action of the market: Reserve, Release, Export, Import or Abort.
// It ignores others. It never blocks; results go to Config.Notify.
func (m *Executor) Execute(a bidask.Action) {
	m.post(func() {
		switch a.Kind {
		case bidask.Reserve:
			m.reserveForDeal(a)
		case bidask.Release:
			m.releaseReservation(a.Deal)
		case bidask.Export:
			m.beginExport(a)
		case bidask.Import:
			m.beginImport(a)
		case bidask.Abort:
			m.step(Event{Kind: AbortRequested, Deal: a.Deal})
		}
	})
}

// Receive handles a peer's message and keeps it. It never blocks.
func (m *Executor) Receive(from policies.ReplicaID, t *api.Transfer) {
	msg, err := decode(from, m.cfg.Self, t)
	if err != nil {
		m.log.Warn("invalid transfer message from peer ignored", "peer", string(from), "error", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.inbox) >= maxInbox {
		return // dropped; the peer sends it again
	}
	m.postLocked(func() {
		if msg.Kind == Accept {
			m.records.recordAccept(key{target, msg.Deal}, msg, t.GetTrace())
		}
		if msg.Kind != Open && len(msg.Transports) == 1 {
			m.records.setTransport(key{source, msg.Deal}, msg.Transports[0])
		}
		m.step(Event{Kind: Received, Message: msg})
		if msg.Kind == Pulling {
			m.abortIfRequestEnded(msg.Deal)
		}
	})
}

// PeerGone reports that a peer left or died.
func (m *Executor) PeerGone(peer policies.ReplicaID) {
	m.post(func() {
		m.cfg.Paths.Forget(peer)
		m.step(Event{Kind: Gone, Peer: peer})
	})
}

// Adopt lets the leg of a live migration's request adopt the migrated blocks: once, only for the
// request's front end, and only while the migration is ready here. It returns the JSON that names
// the reservation to the engine. It implements frontend.Adopter.
func (m *Executor) Adopt(migration, request string, frontEnd policies.ReplicaID) (json.RawMessage, error) {
	deal, err := parseDeal(migration)
	if err != nil {
		return nil, err
	}
	answer := make(chan error, 1)
	if !m.post(func() {
		err := errors.New("no migration with this ID is ready for this front end")
		for _, a := range m.step(Event{Kind: AdoptRequested, Deal: deal, Peer: frontEnd, Request: Request{ID: request}}) {
			if a.Kind == AllowAdopt && a.Deal == deal {
				err = nil
			}
		}
		answer <- err
	}) {
		answer <- errors.New("the migration executor has stopped")
	}
	timer := time.NewTimer(adoptTimeout)
	defer timer.Stop()
	select {
	case err = <-answer:
	case <-timer.C:
		// A later answer may still allow it: then ReadyTimeout frees the blocks.
		err = errors.New("the migration executor did not answer in time")
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s for %s: %w", migration, frontEnd, err)
	}
	return json.Marshal(map[string]string{"cascade_reservation": migration})
}

var _ frontend.Adopter = (*Executor)(nil)

// parseDeal parses the result of Deal.String.
func parseDeal(s string) (bidask.Deal, error) {
	at := strings.LastIndexByte(s, '/')
	n, err := strconv.ParseUint(s[at+1:], 10, 64)
	if at <= 0 || err != nil {
		return bidask.Deal{}, fmt.Errorf("invalid migration ID %q: want seller/number", s)
	}
	return bidask.Deal{Seller: policies.ReplicaID(s[:at]), Number: n}, nil
}

// step passes an event to the machine, executes the resulting actions and returns them.
func (m *Executor) step(ev Event) []Action {
	ev.Now = m.now()
	actions := m.machine.Step(ev)
	for _, a := range actions {
		m.execute(a)
	}
	return actions
}

// execute starts one action.
func (m *Executor) execute(a Action) {
	switch a.Kind {
	case Send:
		m.send(a)
	case List:
		m.listBlocks(a)
	case Freeze:
		m.freezeRequest(a)
	case Thaw, Drop:
		m.unfreeze(a)
	case Revoke:
		m.revokeOffers(a)
	case Prepare:
		m.prepareImport(a)
	case Pull:
		m.pullRound(a)
	case Release:
		m.releaseReservation(a.Deal)
	case AllowAdopt:
		m.records.setState(key{target, a.Deal}, "adopted")
	case DenyAdopt: // Adopt answers
	case SwitchHolder:
		m.switchHolder(a)
	case LookUpHolder:
		m.lookUpHolder(a)
	case Completed, Failed:
		m.endMigration(a)
	}
}

// send sends a message to a peer.
func (m *Executor) send(a Action) {
	msg := a.Message
	if msg.Kind == Accept && msg.Mode == Live {
		msg.Offers = m.transportOffers(msg)
	}
	if msg.Kind == Open || msg.Kind == Commit {
		var busy bool
		msg.Connector, busy = m.cfg.FrontEnd().KVConnector()
		msg.EngineBusy = busy && msg.Kind == Commit
	}
	switch msg.Kind {
	case Open:
		m.records.recordMessage(key{target, msg.Deal}, msg)
	case Pulled, Pulling, Ready:
		m.records.recordMessage(key{target, msg.Deal}, msg)
		msg.Transports = m.records.transportOf(key{target, msg.Deal}) // for the source's record
	case Accept, Round, Manifest, Commit, Query:
		m.records.recordMessage(key{source, msg.Deal}, msg)
	}
	t := encode(msg)
	if msg.Kind == Accept {
		t.Trace = m.records.traceOf(key{source, msg.Deal})
	}
	m.cfg.Send(msg.To, &api.Envelope{Body: &api.Envelope_Transfer{Transfer: t}})
}

// endMigration records the end of a migration and reports it to the market.
func (m *Executor) endMigration(a Action) {
	k, kind := key{target, a.Deal}, bidask.TransferFailed
	if a.Deal.Seller == m.cfg.Self {
		k.role = source
		delete(m.exports, a.Deal)
	}
	if a.Kind == Completed {
		kind = bidask.TransferDone
	}
	if a.Request != "" {
		m.cfg.FrontEnd().AdvanceEpoch(a.Request, a.Epoch)
	}
	if a.Mode == Handoff {
		m.records.update(k, func(rec *record) { rec.Mode = a.Mode.String() })
	}
	m.records.recordStall(k, time.Duration(a.Stall)*time.Microsecond)
	if ended, ok := m.records.end(k, a); ok {
		m.cfg.OnEnd(ended)
		m.log.Info("migration ended", "migration", ended.ID, "role", ended.Role, "request", ended.Request, "from", ended.From, "to", ended.To, "mode", ended.Mode,
			"state", ended.State, "rounds", ended.Rounds, "tokens", ended.Tokens, "stall", ended.Stall, "failure", ended.Failure)
	}
	m.cfg.Notify(bidask.Event{Kind: kind, Deal: a.Deal, Over: a.Failure == RequestEnded || a.Failure == Withdrawn && k.role == target})
}

// Migrations returns the running migrations of which this replica is source or target, then the
// latest finished ones, each in order of start or end.
func (m *Executor) Migrations() []Migration { return m.records.list() }

// Stats returns the counters of this replica's migrations.
func (m *Executor) Stats() Stats { return m.records.snapshot() }
