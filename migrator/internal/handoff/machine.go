package handoff

import (
	"errors"
	"fmt"
	"time"
)

const (
	// Lease is for how long an engine keeps the KV of a handoff at least. Operators must not
	// shorten it.
	Lease = 30 * time.Second
	// Deadline is how long after the request to the holder the first token of a leg that
	// fetches KV may come.
	Deadline = Lease / 2
	// answerShare is the divisor of the client's patience for which the holder may take to
	// answer.
	answerShare = 20
	// slowAnswer bounds the holder's answer while the client waits by its answer before the freeze:
	// one that takes so many times as long has become busy. frozenShare is the divisor of the
	// client's patience for which the holder may take in any case.
	slowAnswer  = 4
	frozenShare = 100
	// MaxRounds is how often KV is copied before the freeze.
	MaxRounds = 2
	// MinCopy is how many ids must be new for a copy before the freeze, by reprompt or by a
	// second handoff: less than that costs the client little.
	MinCopy = 512
)

// Why a leg that has fetched KV is discarded, or a stream stays.
var (
	ErrNoHandoff  = errors.New("the stream moves only with its KV, which is not handed over")
	ErrLate       = errors.New("the target's first token came too late after the holder handed the KV over")
	ErrHolderLost = errors.New("the holder was lost after it handed the KV over")
)

// ActionKind says what an Action asks for.
type ActionKind uint8

// The actions. Each is answered with one Event.
const (
	KeepKV       ActionKind = iota + 1 // ask the holder to keep the KV of the present ids, within Within: Kept, Failed
	CopyKV                             // have the target fetch what was kept, within Within, and discard its token: Copied, Failed
	Compute                            // have the target compute the KV of the present ids: Copied, Failed
	Freeze                             // freeze the stream: Frozen, Failed
	OpenHandoff                        // open the target's leg, which fetches what was kept, within Within: Opened, Failed
	OpenReprompt                       // open the target's leg, which computes the KV, under a new epoch if Renew: Opened, Failed
	Splice                             // use the leg that was opened; the move is done
	Fail                               // the stream stays at its holder, because of Err
)

var actionNames = [...]string{"", "keep-kv", "copy-kv", "compute", "freeze", "open-handoff", "open-reprompt", "splice", "fail"}

// String names the action, for tests.
func (k ActionKind) String() string {
	if int(k) < len(actionNames) {
		return actionNames[k]
	}
	return "unknown"
}

// Action is something that the driver does for a move.
type Action struct {
	Kind   ActionKind
	Within time.Duration // KeepKV, CopyKV, OpenHandoff
	Renew  bool          // OpenReprompt: a leg under the present epoch was discarded
	// Discard says that the leg of the Opened before must be closed.
	Discard bool
	Err     error // Fail
}

// EventKind says what an Event is.
type EventKind uint8

// The events.
const (
	Started EventKind = iota + 1 // the move begins
	Kept                         // the holder has answered with parameters for the ids
	Copied                       // the target has the KV of the ids that were present
	Frozen                       // the stream is frozen
	Opened                       // the leg's first token has come
	Failed                       // the action failed, because of Err
)

// Event is what became of the last action.
type Event struct {
	Kind EventKind
	Now  time.Duration // of one clock
	IDs  int           // how many the stream has now
	// Frozen says that the stream is frozen; so it is, early, when its holder was lost.
	Frozen bool
	// HolderLost says that the holder's leg was lost. It stays set.
	HolderLost bool
	// TargetLost says, with Failed, that the target is gone.
	TargetLost bool
	Err        error // Failed
}

// Config is what a Machine needs to know of its move. All fields are fixed.
type Config struct {
	// NoHandoff is why no handoff is tried; nil: both engines may have a KV connector.
	NoHandoff error
	// KeepsKV says that the stream stays if its KV cannot be handed over, unless its holder
	// was lost.
	KeepsKV bool
	// Patience is how long the client may wait for the target's first token, from the
	// freeze on. Half of it is left for a reprompt.
	Patience time.Duration
}

// Machine is one move. It is not safe for concurrent use.
type Machine struct {
	cfg     Config
	last    ActionKind
	handoff bool  // the next leg is to be opened by handoff
	failure error // why it is not any more
	frozen  bool  // the client waits

	rounds, copied int           // before the freeze: how many, and how many ids the target has
	asked          int           // for how many ids the last KeepKV or Compute was
	askedAt        time.Duration // when the last KeepKV was
	answered       time.Duration // how long the holder took to answer the last KeepKV
	mayFetch       bool          // the target may fetch, later than it should, what was kept then
}

// New returns the machine of a move that is about to begin.
func New(c Config) *Machine { return &Machine{cfg: c, handoff: c.NoHandoff == nil} }

// Handoff reports whether the leg that was spliced has fetched the KV.
func (m *Machine) Handoff() bool { return m.last == Splice && m.handoff }

// Failure returns why a handoff that was tried has become a reprompt, nil if it has not.
func (m *Machine) Failure() error { return m.failure }

// Step takes what became of the last action and returns the next one.
func (m *Machine) Step(ev Event) Action {
	if ev.HolderLost {
		m.giveUp(ErrHolderLost)
	}
	failed := ev.Kind == Failed
	switch m.last {
	case KeepKV:
		if failed {
			m.giveUp(ev.Err)
		}
		if m.answered = ev.Now - m.askedAt; m.handoff {
			return m.fetch(ev)
		}
	case CopyKV:
		switch {
		case failed && ev.TargetLost, !failed && m.expired(ev, Lease):
			return m.fail(ev)
		case failed:
			m.giveUp(ev.Err)
		default:
			m.copied, m.mayFetch = m.asked, false
		}
	case Compute:
		switch {
		case !failed:
			m.copied = m.asked
		case ev.TargetLost || !ev.Frozen: // else the leg finds what was computed
			return m.fail(ev)
		}
	case Freeze:
		if failed {
			return m.fail(ev)
		}
		m.frozen = true
	case OpenHandoff:
		switch {
		case failed && ev.TargetLost, !failed && m.expired(ev, Lease):
			return m.fail(ev)
		case failed:
			m.giveUp(ev.Err)
		case m.expired(ev, Deadline):
			m.giveUp(ErrLate)
		}
		if m.stays(ev) {
			return m.stay(ev)
		}
		if !m.handoff {
			return m.next(Action{Kind: OpenReprompt, Renew: true, Discard: !failed})
		}
		return m.next(Action{Kind: Splice})
	case OpenReprompt:
		if failed || m.mayFetch && m.expired(ev, Lease) {
			return m.fail(ev)
		}
		return m.next(Action{Kind: Splice})
	}
	return m.prepare(ev)
}

// prepare brings KV to the target before the freeze, and what is left after it.
func (m *Machine) prepare(ev Event) Action {
	// The first handoff is always before the freeze: a holder that has just become too busy to answer
	// shows it while the client reads on.
	grown := (ev.IDs-m.copied >= MinCopy || m.handoff && m.rounds == 0 && !m.cfg.KeepsKV) && m.rounds < MaxRounds
	switch {
	case m.stays(ev):
		return m.stay(ev)
	case m.frozen && m.handoff:
		return m.keep(ev)
	case m.frozen:
		return m.next(Action{Kind: OpenReprompt})
	case ev.Frozen || !grown:
		return m.next(Action{Kind: Freeze}) // at once if the stream froze because its holder was lost
	case m.handoff:
		m.rounds++
		return m.keep(ev)
	case m.copied > 0:
		return m.next(Action{Kind: Freeze})
	}
	m.rounds++
	m.asked = ev.IDs
	return m.next(Action{Kind: Compute})
}

func (m *Machine) keep(ev Event) Action {
	m.asked, m.askedAt = ev.IDs, ev.Now
	within := m.cfg.Patience / answerShare
	switch {
	case m.cfg.KeepsKV && !m.frozen:
		within = m.cfg.Patience / 2 // the client does not wait, and the holder may have prompts to compute
	case m.frozen && m.rounds > 0 && !m.cfg.KeepsKV:
		within = min(within, max(m.cfg.Patience/frozenShare, slowAnswer*m.answered))
	}
	return m.next(Action{Kind: KeepKV, Within: within})
}

// fetch has the target fetch what was kept, in time for a reprompt after it.
func (m *Machine) fetch(ev Event) Action {
	a := Action{Kind: CopyKV, Within: min(Deadline, m.cfg.Patience/2) - (ev.Now - m.askedAt)}
	if m.frozen {
		a.Kind = OpenHandoff
	}
	m.mayFetch = true
	return m.next(a)
}

// expired reports whether more time has passed since the holder was asked. If it is the
// lease, the target may have fetched blocks of other requests and cached them as the
// stream's: then not even a reprompt there can be trusted.
func (m *Machine) expired(ev Event, d time.Duration) bool { return ev.Now-m.askedAt > d }

// stays reports whether the stream stays at its holder because its KV cannot follow.
func (m *Machine) stays(ev Event) bool { return m.cfg.KeepsKV && !m.handoff && !ev.HolderLost }

// stay ends the move of a stream that stays.
func (m *Machine) stay(ev Event) Action {
	if ev.Err = m.failure; ev.Err == nil {
		ev.Err = fmt.Errorf("%w: %w", ErrNoHandoff, m.cfg.NoHandoff)
	}
	return m.fail(ev)
}

func (m *Machine) fail(ev Event) Action {
	a := Action{Kind: Fail, Discard: ev.Kind == Opened, Err: ev.Err}
	if a.Err == nil {
		a.Err = ErrLate
	}
	return m.next(a)
}

func (m *Machine) next(a Action) Action { m.last = a.Kind; return a }

// giveUp makes the move one by reprompt.
func (m *Machine) giveUp(err error) {
	if m.handoff {
		m.handoff, m.failure = false, err
	}
}
