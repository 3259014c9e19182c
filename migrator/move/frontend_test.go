package move_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// frontEnd serves the streams of its clients. It compares each token with that of a run without
// migration.
type frontEnd struct {
	w    *fleet
	node *replica

	mu      sync.Mutex
	streams map[string]*clientStream
	frozen  map[string]bool // the legs that FreezeLeg reported
}

type clientStream struct {
	id      string
	ids     []uint32
	sum     digest // of the KV of all ids
	prompt  int
	max     int
	holder  *replica
	epoch   policies.Epoch
	pending bool
	conn    *legConn
	rescues int

	cut  bool    // the tokens of the current leg are held back
	held []event // of the current leg
	lost bool    // the current leg is broken, but another one may follow

	next    *legConn // the leg that is being opened
	first   []event
	changed chan struct{} // closed and replaced at each change

	over  bool
	whole bool // ended with all its tokens
}

func (s *clientStream) append(id uint32) {
	for r := range layout.Regions {
		s.sum = s.sum.add(kv(id, len(s.ids), r))
	}
	s.ids = append(s.ids, id)
}

func (s *clientStream) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// startStream starts a stream at a replica.
func (f *frontEnd) startStream(name string, prompt []uint32, most int, at *replica) {
	f.mu.Lock()
	s := &clientStream{id: name, prompt: len(prompt), max: most, holder: at, epoch: 1, changed: make(chan struct{})}
	for _, id := range prompt {
		s.append(id)
	}
	f.streams[name] = s
	f.mu.Unlock()
	c := f.w.newConn(f.node, at, name, leg(name, 1), 1)
	f.mu.Lock()
	s.conn = c
	f.mu.Unlock()
	if err := at.engine.prompt(c, c.leg, prompt, len(prompt), most); err != nil {
		panic(err)
	}
}

func leg(name string, e policies.Epoch) string { return fmt.Sprintf("%s#%d", name, e) }

// handleEvent handles an event of a leg.
func (f *frontEnd) handleEvent(c *legConn, ev event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.streams[c.stream]
	switch {
	case s == nil || s.over:
	case c == s.next:
		s.first = append(s.first, ev)
		s.notify()
	case c == s.conn:
		f.handleCurrentLegLocked(s, ev)
	}
}

// handleCurrentLegLocked handles an event of the current leg.
func (f *frontEnd) handleCurrentLegLocked(s *clientStream, ev event) {
	defer s.notify()
	switch {
	case s.cut && !ev.broken:
		s.held = append(s.held, ev)
	case ev.token:
		if want := s.sum.next(); ev.id != want {
			f.w.fail("%s: token %d is %d from %s, want %d", s.id, len(s.ids), ev.id, s.conn.leg, want)
		}
		if len(s.ids) >= s.max {
			f.w.fail("%s: a token too many", s.id)
		}
		s.append(ev.id)
	case ev.finish:
		s.over, s.whole = true, len(s.ids) == s.max
		if !s.whole {
			f.w.fail("%s ends with %d of %d tokens", s.id, len(s.ids), s.max)
		}
	case ev.broken && s.pending:
		s.lost = true
	case ev.broken:
		f.rescueLocked(s)
	}
}

// rescueLocked continues by re-prompting at another replica.
func (f *frontEnd) rescueLocked(s *clientStream) {
	if s.over || f.node.dead() {
		return
	}
	s.conn.hangUp()
	s.lost = false
	s.epoch += 2
	s.rescues++
	epoch, ids := s.epoch, slices.Clone(s.ids)
	at := f.node
	for _, n := range f.w.replicas {
		if n != f.node && !n.dead() && !f.w.partitioned(f.node, n) && !n.paused() {
			at = n
			break
		}
	}
	s.holder = at
	c := f.w.newConn(f.node, at, s.id, leg(s.id, epoch), epoch)
	s.conn = c
	f.w.wg.Go(func() {
		if err := at.engine.prompt(c, c.leg, ids, s.prompt, s.max); err != nil {
			c.push(event{broken: true})
		}
	})
}

// disconnectClient disconnects a client.
func (f *frontEnd) disconnectClient(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.streams[name]; s != nil && !s.over {
		s.over = true
		s.conn.hangUp()
		s.notify()
	}
}

var errBack = errors.New("the target did not take over")

// Migrate behaves as migrator/frontend specifies.
func (f *frontEnd) Migrate(ctx context.Context, m frontend.Migration) (frontend.MigrationResult, error) {
	if err := f.node.passGate(ctx, "move"); err != nil {
		return frontend.MigrationResult{}, frontend.ErrNoStream
	}
	to := f.w.replica(m.To.Replica)
	f.mu.Lock()
	s := f.streams[m.Stream]
	switch {
	case s == nil || s.over:
		f.mu.Unlock()
		return frontend.MigrationResult{}, frontend.ErrNoStream
	case s.pending || s.lost || s.holder.id != m.From || s.epoch != m.Epoch:
		f.mu.Unlock()
		return frontend.MigrationResult{}, frontend.ErrStaleEpoch
	}
	s.pending = true
	s.epoch++
	epoch, current, began := s.epoch, s.conn, time.Now()
	s.first = nil
	if m.Reservation == "" {
		s.cut = true
	}
	f.mu.Unlock()

	err := f.open(ctx, s, m, to, epoch)
	f.mu.Lock()
	defer f.mu.Unlock()
	defer s.notify()
	s.pending = false
	next, held := s.next, s.held
	s.next, s.cut, s.held = nil, false, nil
	if s.over {
		if next != nil {
			next.hangUp()
		}
		return frontend.MigrationResult{}, frontend.ErrNoStream
	}
	if err != nil {
		if next != nil {
			next.hangUp()
		}
		s.epoch++
		for _, ev := range held {
			f.handleCurrentLegLocked(s, ev)
		}
		if s.lost {
			f.rescueLocked(s)
		}
		return frontend.MigrationResult{Epoch: m.Epoch + 2}, err
	}
	s.holder, s.conn, s.lost = to, next, false
	for _, ev := range s.first {
		f.handleCurrentLegLocked(s, ev)
	}
	s.first = nil
	current.hangUp()
	if m.From == f.node.id { // its own engine, of which it knows better
		m.FromConnector, m.FromBusy = f.KVConnector()
	}
	f.w.countMoved(m.Reservation != "")
	return frontend.MigrationResult{Epoch: epoch, Stall: time.Since(began), Handoff: m.Reservation == "" && m.FromAddress == string(m.From) && !m.FromBusy && engineinfo.CheckHandoff(m.FromConnector, m.ToConnector) == nil}, nil
}

// open opens the leg at the target and waits for its first token.
func (f *frontEnd) open(ctx context.Context, s *clientStream, m frontend.Migration, to *replica, epoch policies.Epoch) error {
	// wait until a condition holds, under the lock
	wait := func(ok func() (bool, error)) error {
		for {
			f.mu.Lock()
			done, err := ok()
			changed := s.changed
			if s.over {
				err = frontend.ErrNoStream
			}
			f.mu.Unlock()
			if done || err != nil {
				return err
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	if m.Reservation != "" {
		if err := wait(func() (bool, error) {
			if len(s.ids) > m.Length {
				return false, errBack
			}
			return len(s.ids) == m.Length, nil
		}); err != nil {
			return err
		}
	}
	f.mu.Lock()
	ids, hash := slices.Clone(s.ids), prefix.Hash(0).Extend(s.ids...)
	f.mu.Unlock()
	if m.Reservation != "" && hash != m.Hash {
		f.w.fail("%s: the ids at the source are others", s.id)
		return errBack
	}
	f.w.hitPoint("open")
	if !f.w.deliver(ctx.Done(), f.node, to) || to.dead() {
		return errBack
	}
	if m.Reservation != "" {
		params, err := to.executor.Adopt(m.Reservation, m.Stream, f.node.id)
		if err != nil {
			return err
		}
		if !strings.Contains(string(params), m.Reservation) {
			f.w.fail("adoption of %s by %s", m.Reservation, params)
		}
		f.w.hitPoint("adopt")
	}
	c := f.w.newConn(f.node, to, s.id, leg(s.id, epoch), epoch)
	f.mu.Lock()
	s.next = c
	f.mu.Unlock()
	if err := to.passGate(ctx, "start"); err != nil {
		return err
	}
	var err error
	if m.Reservation != "" {
		err = to.engine.adopt(c, c.leg, m.Reservation, s.max)
	} else {
		err = to.engine.prompt(c, c.leg, ids, s.prompt, s.max)
	}
	if err != nil {
		return err
	}
	return wait(func() (bool, error) {
		if len(s.first) > 0 {
			if s.first[0].broken {
				return false, errBack
			}
			f.w.hitPoint("first")
			return true, nil
		}
		return false, nil
	})
}

// requestTrace is the traceparent of every request.
const requestTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func (f *frontEnd) Holder(name string) (frontend.Holder, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.streams[name]
	if s == nil || s.over {
		return frontend.Holder{}, false
	}
	return frontend.Holder{Replica: s.holder.id, Epoch: s.epoch, Pending: s.pending, Trace: requestTrace}, true
}

// LocalLegs returns the requests of this replica's engine.
func (f *frontEnd) LocalLegs() []frontend.LocalLeg {
	e := f.node.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []frontend.LocalLeg
	for _, q := range e.seqs {
		out = append(out, frontend.LocalLeg{Request: policies.Request{ID: q.conn.stream, Input: policies.Tokens(q.prompt), Output: policies.Tokens(len(q.ids) - q.prompt)},
			Name: q.leg, FrontEnd: q.conn.front.id, Epoch: q.conn.epoch, Since: q.since, Trace: requestTrace})
	}
	return out
}

// AdvanceEpoch is called by the source of a failed migration.
func (f *frontEnd) AdvanceEpoch(name string, epoch policies.Epoch) {
	e := f.node.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.seqs {
		if q.conn.stream == name {
			q.conn.epoch = max(q.conn.epoch, epoch)
		}
	}
}

// KVConnector names an engine's connector after the version that it needs, in the scenarios.
func (f *frontEnd) KVConnector() (c engineinfo.KVConnector, busy bool) {
	e := f.node.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	c.Presence = engineinfo.Absent
	if e.connector != "" {
		c.Presence, c.Name = engineinfo.Present, e.connector
	}
	return c, e.busy
}

// FreezeLeg is called by the source around a freeze.
func (f *frontEnd) FreezeLeg(name string, frozen bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.frozen[name] = true; !frozen {
		delete(f.frozen, name)
	}
}

func (f *frontEnd) countsFrozen(leg string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.frozen[leg]
}

// peerLost handles the loss of a peer: it rescues the streams that ran there, and ends the peer's
// legs here.
func (f *frontEnd) peerLost(peer *replica) {
	f.mu.Lock()
	for _, s := range f.streams {
		if s.holder == peer && !s.over && !s.pending {
			f.rescueLocked(s)
		} else if s.holder == peer && s.pending {
			s.lost = true
		}
	}
	f.mu.Unlock()
	e := f.node.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.seqs {
		if q.conn.front == peer {
			q.conn.shut()
			e.remove(q)
		}
	}
}

// settled reports whether all streams have ended.
func (f *frontEnd) settled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.streams {
		if !s.over {
			return false
		}
	}
	return true
}

// waitFor polls until ok returns true, for at most the time most.
func waitFor(most time.Duration, ok func() bool) bool {
	for end := time.Now().Add(most); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}
