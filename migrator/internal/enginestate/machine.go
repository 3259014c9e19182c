// Package enginestate decides whether the engine of a front end is ready, away or hung, from its
// health checks, its counters and what it brings, and what follows for its requests. It is pure: it
// reads no clock and calls no engine. The driver is migrator/frontend.
//
// A Machine takes events and returns the actions that follow from them:
//
//	                  ┌────────────── a check is passed: Open, then Accept ─────────────┐
//	                  ▼                                                                 │
//	starting ──► ready ── refused, unhealthy, or late twice without progress ──────► away
//	                  │                                                                 ▲
//	                  └── no progress (Monitor): hung; a check asks for a token ────────┘
//
// # Invariants
//
//  1. The clients' address is open before the engine counts as ready: proxies connect at once.
//  2. One health check is in progress at a time, and one read of the counters.
//  3. A hung engine is hung until it has answered a request: /health alone proves nothing.
//  4. An engine that does not answer in time but generates, or whose answer this process was too
//     late to read, is not away. A fault of this process says nothing about the engine.
//  5. An engine that says that it is unhealthy, or whose port is closed, is believed at once: its
//     requests go elsewhere. One that is silent may be busy: they go after HangTimeout.
package enginestate

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	retry       = 100 * time.Millisecond // between health checks while the engine is away
	startNotice = 5 * time.Second        // then an engine that has passed no health check is noted
)

// EventKind says what an Event is.
type EventKind uint8

// The events.
const (
	Ticked         EventKind = iota + 1 // a few times a second: Work, GivenUp and LoadDue
	Sampled                             // answer to ReadCounters: Counters
	CheckRequested                      // a request failed in a way that may be the engine's end
	CheckDue                            // the time of NextCheck has come
	Checked                             // answer to BeginCheck: Outcome and Generated
	Opened                              // answer to Open: Open
)

// Outcome is how a health check ended.
type Outcome uint8

// The outcomes.
const (
	Passed      Outcome = iota
	Unhealthy           // the engine says so, or answers nonsense
	Refused             // its port is closed
	Late                // it did not answer in time
	OtherEngine         // it is not the one that is configured
	LocalFault          // this process ran out of a resource
)

// Event is something that happened at time Now, which never decreases. Ready is whether requests
// are accepted, which other goroutines may end at any time. Brought grows with every token and whole
// answer that comes from the engine.
type Event struct {
	Kind    EventKind
	Now     time.Duration
	Ready   bool
	Brought uint64

	Work      Work   // Ticked: what the engine has to do
	GivenUp   uint64 // Ticked: streams that the engine did not go on with, since the start
	LoadDue   bool   // Ticked: the engine's load is to be read
	Counters  uint64 // Sampled: a hash of them; 0 if the engine has none
	Outcome   Outcome
	Generated bool // Checked: the engine was asked for a token
	Open      bool // Opened: the address is open, or is not wanted any more
}

// ActionKind says what an Action asks for.
type ActionKind uint8

// The actions, to be carried out in their order.
const (
	ReadCounters ActionKind = iota + 1 // Sampled answers
	BeginCheck                         // ask for a token too if Generate; Checked answers
	NextCheck                          // report CheckDue After a time; replaces the one before
	Open                               // open the clients' address; Opened answers, before any other event
	Shut                               // close the clients' address; requests in progress go on
	Accept                             // requests are accepted
	Refuse                             // requests are refused
	Move                               // the engine's requests go on or begin elsewhere, those that can
	Cut                                // all of the engine's requests end
	Forget                             // what is known of the engine's cache: it has started anew
	ForgetModel                        // what is known of the model: the next engine may be another one
	ForgetOther                        // that it was another engine: it is away
	NoteHung                           // for the log: it makes no progress
	NoteAway                           // … it stopped answering
	NoteSilent                         // … it has passed no health check since the start
	NoteLocal                          // … no check was sent
	NoteReady                          // … it became ready
)

var actionNames = [...]string{"", "read-counters", "begin-check", "next-check", "open", "shut", "accept", "refuse", "move", "cut",
	"forget", "forget-model", "forget-other", "note-hung", "note-away", "note-silent", "note-local", "note-ready"}

// String names the action, for tests.
func (k ActionKind) String() string { return actionNames[k] }

// Action is something that the driver does.
type Action struct {
	Kind     ActionKind
	After    time.Duration // NextCheck
	Generate bool          // BeginCheck
}

// Config configures a Machine. All fields are required but Cost.
type Config struct {
	Cost           policies.Cost // of the engine; see NewMonitor
	MinPause       time.Duration // see NewMonitor
	HealthInterval time.Duration // between health checks of a ready engine
	HangTimeout    time.Duration // of silence or without progress after which its requests go, or end
}

// Machine judges one engine. It is not safe for concurrent use.
type Machine struct {
	cfg Config
	out []Action

	hung     bool
	starting bool          // it has not been ready, and the log has not named it
	away     bool          // it is not ready, since awaySince
	since    time.Duration // of away
	failures int           // checks in a row
	checking bool
	brought  uint64 // when the check began
	starved  uint64 // … of starvations

	monitor *Monitor
	ticked  time.Duration // the last Ticked
	late    uint64        // ticks that came too late
	givenUp uint64        // of Event, that the monitor knows
	// The counters of the engine's core move with every step, whether or not a request gets a token.
	sampling bool
	counters uint64 // as last read
	moved    uint64 // how often they had moved
	readable bool   // the engine has counters
}

// New returns the Machine of an engine that was not seen yet. The driver reports CheckDue at once.
func New(c Config) *Machine {
	m := &Machine{cfg: c, starting: true, away: true}
	m.watchAnew(0)
	return m
}

// watchAnew begins to watch the progress of an engine that has just become ready.
func (m *Machine) watchAnew(brought uint64) {
	m.monitor, m.counters, m.readable = NewMonitor(m.cfg.Cost, m.cfg.MinPause, brought+m.moved), 0, false
}

// CountsSteps reports whether the engine has counters that show how it gets on.
func (m *Machine) CountsSteps() bool { return m.readable }

// Pause returns for how long the engine has brought nothing although it has work, and Limit after
// which pause it is hung.
func (m *Machine) Pause() (pause, limit time.Duration) { return m.monitor.Pause(), m.monitor.Limit() }

// Step handles an event and returns the actions that follow, which are valid until the next Step.
func (m *Machine) Step(ev Event) []Action {
	m.out = m.out[:0]
	switch ev.Kind {
	case Ticked:
		m.tick(ev)
	case Sampled:
		m.sampling = false
		if ev.Counters != 0 && m.counters != 0 && ev.Counters != m.counters {
			m.moved++
		}
		m.counters, m.readable = ev.Counters, m.readable || ev.Counters != 0
	case CheckRequested:
		if !ev.Ready {
			m.do(Shut) // the port is closed: one failure is enough
		}
		m.checkAfter(0)
	case CheckDue:
		if !m.checking {
			m.checking, m.brought, m.starved = true, ev.Brought, m.starvations(ev.Now)
			m.out = append(m.out, Action{Kind: BeginCheck, Generate: m.hung})
		}
	case Checked:
		m.checking = false
		m.handleOutcome(ev)
	case Opened:
		m.handleOpened(ev)
	}
	return m.out
}

func (m *Machine) do(k ...ActionKind) {
	for _, k := range k {
		m.out = append(m.out, Action{Kind: k})
	}
}

func (m *Machine) checkAfter(d time.Duration) {
	m.out = append(m.out, Action{Kind: NextCheck, After: d})
}

func (m *Machine) readCounters() {
	if !m.sampling {
		m.sampling = true
		m.do(ReadCounters)
	}
}

// starvations counts how often this process got too little CPU to judge its engine by what did not
// come in time.
func (m *Machine) starvations(now time.Duration) uint64 {
	if now-m.ticked > MaxGap {
		return m.late + 1 // a tick is late now
	}
	return m.late
}

// tick judges the engine by what it has brought and has to do.
func (m *Machine) tick(ev Event) {
	m.late, m.ticked = m.starvations(ev.Now), ev.Now
	for ; m.givenUp < ev.GivenUp; m.givenUp++ {
		m.monitor.GiveUp(ev.Now)
	}
	state := m.monitor.Check(ev.Now, ev.Brought+m.moved, ev.Work)
	if state == Quiet || ev.Ready && ev.LoadDue {
		m.readCounters()
	}
	if state == Hung && !m.hung {
		m.hung, m.away, m.since = true, true, ev.Now
		m.do(NoteHung, Refuse, Shut)
		m.checkAfter(0)
	}
	if m.hung {
		m.do(Move)
		if ev.Now-m.since > m.cfg.HangTimeout {
			m.do(Cut)
		}
	}
}

func (m *Machine) handleOutcome(ev Event) {
	switch {
	case ev.Outcome == Passed && m.hung && !ev.Generated:
		m.checkAfter(0) // it began before the engine was found hung
	case ev.Outcome == Passed:
		m.failures = 0
		m.do(Open)
	case ev.Outcome == LocalFault:
		m.do(NoteLocal)
		m.checkAfter(retry)
	case ev.Outcome == Late && (ev.Brought != m.brought || m.starvations(ev.Now) != m.starved):
		m.checkAfter(retry) // it generates; or this process was too late to read the answer
	default:
		m.handleFailure(ev)
	}
}

// handleFailure handles a check that was not passed.
func (m *Machine) handleFailure(ev Event) {
	other := ev.Outcome == OtherEngine
	m.failures++
	if m.failures >= 2 || ev.Outcome == Refused || other || !ev.Ready {
		if !other {
			m.do(ForgetOther)
		}
		m.do(Refuse) // a request that was refused may have done so
		if !m.away {
			m.away, m.since = true, ev.Now
			if !other {
				m.do(NoteAway)
			}
		}
		if other {
			m.starting = false // the log has said what is wrong
		}
		if m.starting && ev.Now-m.since > startNotice { // it may still load, or have another address
			m.starting = false
			m.do(NoteSilent)
		}
		if ev.Outcome != Late || ev.Now-m.since > m.cfg.HangTimeout {
			m.do(Move)
		}
		m.do(ForgetModel, Shut)
	}
	if other {
		m.checkAfter(m.cfg.HealthInterval)
	} else {
		m.checkAfter(retry)
	}
}

// handleOpened accepts requests once the address is open.
func (m *Machine) handleOpened(ev Event) {
	if ev.Open {
		switch {
		case m.hung:
			m.hung = false
			m.monitor.Resume()
		case !ev.Ready:
			m.watchAnew(ev.Brought)
			m.do(Forget)
		}
		m.away, m.starting = false, false
		m.do(Accept)
		if !ev.Ready {
			m.do(NoteReady)
			m.readCounters()
		}
	}
	m.checkAfter(m.cfg.HealthInterval)
}
