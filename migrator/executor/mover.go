package executor

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
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Mover carries out one replica's moves. Its methods are safe for concurrent
// use.
type Mover struct {
	cfg  Config
	log  *slog.Logger
	link pacer

	mu      sync.Mutex
	inbox   []func() // for Run's goroutine, in order
	closed  bool     // Run has ended
	started bool
	ready   chan struct{} // has a value when the inbox is not empty

	workers sync.WaitGroup

	// Owned by Run's goroutine.
	ctx     context.Context // of Run, for work
	start   time.Time
	machine *transfer.Machine
	lines   map[key]*line
	exports map[bidask.Deal]*export
	imports map[bidask.Deal]*intake
	closing map[*intake]bool // released, and not closed yet
	asking  chan<- error     // of the Adopting in progress

	routes  routes
	records records
}

// New returns a mover that does nothing before Run.
func New(c Config) (*Mover, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	machine, err := transfer.New(c.Transfer)
	if err != nil {
		return nil, fmt.Errorf("mover of %s: %w", c.Self, err)
	}
	return &Mover{cfg: c, log: c.Logger, link: pacer{rate: c.Link}, ready: make(chan struct{}, 1), machine: machine,
		lines: map[key]*line{}, exports: map[bidask.Deal]*export{}, imports: map[bidask.Deal]*intake{}, closing: map[*intake]bool{}, routes: newRoutes(c.Transports), records: newRecords(c)}, nil
}

// Run carries out moves until ctx ends; it returns nil then. Moves under way are
// left as they are: what the engine holds for them ends with its session. It may
// be called once.
func (m *Mover) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	m.mu.Lock()
	if m.started {
		m.mu.Unlock()
		stop()
		return errors.New("internal error: a mover runs once")
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
	m.workers.Go(m.probe)
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
			m.step(transfer.Event{Kind: transfer.Ticked})
		}
	}
}

// post has f run on Run's goroutine, and reports false once Run has ended.
func (m *Mover) post(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.postLocked(f)
}

func (m *Mover) postLocked(f func()) bool {
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

// now is the machine's time: rounded up, so that a timer finds its deadline due.
func (m *Mover) now() policies.Micros {
	return policies.Micros((time.Since(m.start) + time.Microsecond - 1) / time.Microsecond)
}

// until is a machine's time as the clock's.
func (m *Mover) until(t policies.Micros) time.Time {
	return m.start.Add(time.Duration(t) * time.Microsecond)
}

// Do carries out what the market wants: Reserve, Release, Export, Import and
// Abort. Other actions are not a mover's. It never blocks; answers go to
// Config.Tell.
func (m *Mover) Do(a bidask.Action) {
	m.post(func() {
		switch a.Kind {
		case bidask.Reserve:
			m.reserve(a)
		case bidask.Release:
			m.release(a.Deal)
		case bidask.Export:
			m.export(a)
		case bidask.Import:
			m.intake(a)
		case bidask.Abort:
			m.step(transfer.Event{Kind: transfer.Aborted, Move: a.Deal})
		}
	})
}

// Receive takes a peer's message. It never blocks; the message is the mover's.
func (m *Mover) Receive(from policies.ReplicaID, t *api.Transfer) {
	msg, err := decode(from, m.cfg.Self, t)
	if err != nil {
		m.log.Warn("a peer's message about a move makes no sense", "peer", string(from), "error", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.inbox) >= maxInbox {
		return // lost; it will be said again
	}
	m.postLocked(func() {
		if msg.Kind == transfer.Offer {
			m.records.offered(key{target, msg.Move}, msg)
		}
		if msg.Kind != transfer.Open && len(msg.Transports) == 1 {
			m.records.transport(key{source, msg.Move}, msg.Transports[0])
		}
		m.step(transfer.Event{Kind: transfer.Received, Message: msg})
		if msg.Kind == transfer.Pulling {
			m.check(msg.Move)
		}
	})
}

// Gone says that a peer left or died.
func (m *Mover) Gone(peer policies.ReplicaID) {
	m.post(func() {
		m.routes.forget(peer)
		m.step(transfer.Event{Kind: transfer.Gone, Peer: peer})
	})
}

// Adopt lets the engine take over what a live move has brought, for the front
// that owns the request: once, and only while the move is ready here. It
// implements frontend.Adopter.
func (m *Mover) Adopt(move, request string, front policies.ReplicaID) (json.RawMessage, error) {
	deal, err := parseDeal(move)
	if err != nil {
		return nil, err
	}
	answer := make(chan error, 1)
	if !m.post(func() {
		m.asking = answer
		m.step(transfer.Event{Kind: transfer.Adopting, Move: deal, Peer: front, Subject: transfer.Subject{Request: request}})
		m.asking = nil
	}) {
		answer <- errors.New("the mover has stopped")
	}
	timer := time.NewTimer(adoptTimeout)
	defer timer.Stop()
	select {
	case err = <-answer:
	case <-timer.C:
		// The answer may come yet: then the blocks are the lease's to free.
		err = errors.New("the mover does not answer")
	}
	if err != nil {
		return nil, fmt.Errorf("adopt %s for %s: %w", move, front, err)
	}
	return json.Marshal(map[string]string{"cascade_reservation": move})
}

var _ frontend.Adopter = (*Mover)(nil)

// parseDeal reads what Deal.String has written.
func parseDeal(s string) (bidask.Deal, error) {
	at := strings.LastIndexByte(s, '/')
	if at <= 0 {
		return bidask.Deal{}, fmt.Errorf("%q names no move: want seller/number", s)
	}
	n, err := strconv.ParseUint(s[at+1:], 10, 64)
	if err != nil {
		return bidask.Deal{}, fmt.Errorf("%q names no move: want seller/number", s)
	}
	return bidask.Deal{Seller: policies.ReplicaID(s[:at]), Number: n}, nil
}

// step gives the machine an event and carries out what it asks for.
func (m *Mover) step(ev transfer.Event) {
	ev.Now = m.now()
	for _, a := range m.machine.Step(ev, nil) {
		m.act(a)
	}
}

// act begins one action.
func (m *Mover) act(a transfer.Action) {
	switch a.Kind {
	case transfer.Send:
		m.send(a)
	case transfer.List:
		m.list(a)
	case transfer.Freeze:
		m.freeze(a)
	case transfer.Thaw, transfer.Drop:
		m.letGo(a)
	case transfer.Revoke:
		m.revoke(a)
	case transfer.Prepare:
		m.prepare(a)
	case transfer.Pull:
		m.pull(a)
	case transfer.Release:
		m.release(a.Move)
	case transfer.Admit:
		m.records.state(key{target, a.Move}, "adopted")
		m.asking <- nil
	case transfer.Deny:
		m.asking <- errors.New("there is no such move that is ready for that front")
	case transfer.Commit:
		m.commit(a)
	case transfer.Look:
		m.look(a)
	case transfer.Moved, transfer.Failed:
		m.over(a)
	}
}

// send passes a message on.
func (m *Mover) send(a transfer.Action) {
	msg := a.Message
	if msg.Kind == transfer.Offer && msg.Way == transfer.Live {
		msg.Offers = m.offers(msg)
	}
	switch msg.Kind {
	case transfer.Open:
		m.records.said(key{target, msg.Move}, msg)
	case transfer.Pulled, transfer.Pulling, transfer.Ready:
		m.records.said(key{target, msg.Move}, msg)
		msg.Transports = m.records.carrier(key{target, msg.Move}) // for the source's record
	case transfer.Offer, transfer.Round, transfer.Manifest, transfer.Swap, transfer.Whose:
		m.records.said(key{source, msg.Move}, msg)
	}
	m.cfg.Network.Send(msg.To, &api.Envelope{Body: &api.Envelope_Transfer{Transfer: encode(msg)}})
}

// over ends a move: the market and who watches hear of it.
func (m *Mover) over(a transfer.Action) {
	k, kind := key{target, a.Move}, bidask.TransferFailed
	if a.Move.Seller == m.cfg.Self {
		k.role = source
		delete(m.exports, a.Move)
	}
	if a.Kind == transfer.Moved {
		kind = bidask.TransferDone
	}
	if a.Request != "" {
		m.cfg.Front.AdvanceEpoch(a.Request, a.Epoch)
	}
	m.records.stalled(k, time.Duration(a.Stall)*time.Microsecond)
	if ended, ok := m.records.end(k, a); ok {
		m.cfg.Ended(ended)
		m.log.Info("a move is over", "move", ended.ID, "role", ended.Role, "request", ended.Request, "from", ended.From, "to", ended.To, "way", ended.Way,
			"state", ended.State, "rounds", ended.Rounds, "tokens", ended.Tokens, "stall", ended.Stall, "why", ended.Why)
	}
	m.cfg.Tell(bidask.Event{Kind: kind, Deal: a.Move})
}

// Moves returns the moves that this replica takes part in as source or target,
// then the last ones that are over, each in order of its beginning or end.
func (m *Mover) Moves() []Move { return m.records.list() }

// Stats returns what the replica's moves came to so far.
func (m *Mover) Stats() Stats { return m.records.sum() }
