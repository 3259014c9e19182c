package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

// State is where a stream is in its life.
type State uint8

// The states.
const (
	Starting State = iota // the first leg has not brought anything
	Relaying              // the chunks of the present leg go to the client
	Claimed               // as Relaying, while a migration prepares its target
	Freezing              // as Relaying, until the client has the ids that a migration needs
	Checking              // chunks are held back until it is known whether the client's text ends where its ids end
	Frozen                // chunks are held back until the migration's leg has its first token
	Seeking               // the leg is lost; a replica is sought
	Opening               // the leg is lost; another one is being opened
	Ended                 // nothing is written to the client any more
)

var stateNames = [...]string{"starting", "relaying", "claimed", "freezing", "checking", "frozen", "seeking", "opening", "ended"}

// String names the state, for tests.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Config is what a Machine needs to know of its request. All fields are fixed, except that the step of the first
// LegOpened adds the leg's limit to Resume.
type Config struct {
	Self      policies.ReplicaID // the replica of the front end
	Request   policies.Request   // as it arrived
	MinTokens policies.Tokens
	Endpoint  openai.Endpoint
	Asked     openai.Edit // what to take out because the client did not ask for it
	Resume    openai.Resume
	CanRescue bool // replicas can be sought
}

// Machine is one client's stream. It is not safe for concurrent use. Its
// invariants, which the tests' Validate checks:
//
//  1. ids are the prompt's and then, once and in order, those of the chunks that
//     were written, except the ids that takeBack removed. No chunk of a leg other
//     than the present one is written.
//  2. In Checking, and from Frozen to the end of the migration, nothing is written and ids do not
//     change. What is held back is the present leg's and at most MaxHeld bytes
//     when the freeze ends.
//  3. A step of a pump's event ends with exactly one directive; no other step has
//     one, nor writes.
//  4. There is at most one migration or rescue at a time. Each MigrationBegan is
//     followed by one MigrationEnded, and a rescue by one RescueEnded.
//  5. The epoch never goes back. Each leg of a migration and each attempt of a
//     rescue have an epoch that no other attempt has.
//  6. Every leg that opened is either the present one or was given back by Close or
//     Leave.
//  7. Ended is final. A step then only answers: the pump with End, a migration
//     with a refusal, and a leg that comes too late with Leave.
type Machine struct {
	cfg   Config
	state State
	transcript
	out []Action // of the step in progress

	leg     Leg
	first   *openai.Chunk      // of leg, to be relayed before its next ones; nil once it was
	holder  policies.ReplicaID // who runs leg
	epoch   policies.Epoch     // grows with every attempt to change the holder
	splices int                // legs that took over from others

	held      []*openai.Chunk // came while the stream was frozen; before all later ones
	heldBytes int

	lost    error         // why leg cannot be read any more; nil while it can
	failure *openai.Chunk // with which its engine reported that; nil for none
	final   bool          // no other leg was found: what the present one reports goes to the client
	done    bool          // the leg brought [DONE]
	cause   error         // why the request's context ended; nil while it lives

	migration   migration // in Claimed, Freezing, Checking and Frozen
	rescue      *rescue   // in Seeking and Opening
	losses      int       // engines lost without getting further
	lastLoss    int       // how many tokens of output there were at the last one
	fingerprint []byte
}

// New returns the machine of a stream whose first leg is about to be opened.
func New(c Config) *Machine {
	return &Machine{cfg: c, transcript: newTranscript(c.Request.Features), holder: c.Self, epoch: 1}
}

// Step takes note of an event and appends what is to be done about it to out,
// which it returns.
func (m *Machine) Step(ev *Event, out []Action) []Action {
	m.out = out
	switch ev.Kind {
	case LegOpened:
		m.legOpened(ev)
	case OpenFailed:
		m.openFailed(ev)
	case ReplicaFound:
		m.replicaFound(ev.Replica)
	case NoReplica:
		m.endRescue()
	case ChunkArrived:
		m.chunkArrived(ev.Leg, ev.Chunk)
	case LegEnded:
		m.legEnded(ev)
	case Resumed:
		m.proceed()
	case ClientFailed:
		m.end()
		m.do(Action{Kind: End})
	case MigrationRequested:
		m.requestMigration(ev)
	case FreezeRequested:
		m.requestFreeze(ev.Migration)
	case MigrationLegOpened:
		m.migrationLegOpened(ev)
	case MigrationFailed:
		m.migrationFailed(ev)
	case TextChecked:
		m.textChecked(ev)
	case MigrationRetried:
		m.renewMigration(ev.Migration)
	case RequestEnded:
		m.requestEnded(ev.Err)
	case HandlerReturned:
		m.end()
	}
	out, m.out = m.out, nil
	return out
}

func (m *Machine) do(a Action) { m.out = append(m.out, a) }

// legOpened takes over the first leg, or the leg of a rescue.
func (m *Machine) legOpened(ev *Event) {
	switch m.state {
	case Starting:
		m.state, m.leg, m.holder, m.first = Relaying, ev.Leg, ev.Replica, ev.Chunk
		m.cfg.Resume, m.losses = m.cfg.Resume.Limited(ev.Limit), ev.Losses
		if m.cause != nil {
			m.do(Action{Kind: Close, Leg: m.leg})
		}
	case Opening:
		if m.cause != nil {
			m.do(Action{Kind: Leave, Leg: ev.Leg, Detail: &Detail{Cached: -1}})
			m.endRescue()
			return
		}
		m.replaceLeg(ev, -1)
		m.rescued()
	default: // no pump brings one
		m.do(Action{Kind: Leave, Leg: ev.Leg, Detail: &Detail{Cached: -1}})
	}
	m.proceed()
}

// chunkArrived is the way of a chunk: it is relayed unless another leg has taken
// over meanwhile.
func (m *Machine) chunkArrived(leg Leg, c *openai.Chunk) {
	if m.state == Ended || leg != m.leg {
		m.proceed()
		return
	}
	m.relay(c)
}

// relay passes a chunk of the present leg to the client, or holds it back.
func (m *Machine) relay(c *openai.Chunk) {
	if ReportsLoss(c) && !m.final {
		lost := ReportedLoss(c)
		m.failure = lost.chunk
		m.lose(lost)
		return
	}
	if m.holding() {
		err := m.hold(c)
		if err == nil {
			m.read()
			return
		}
		m.endMigration(err)
	}
	if len(m.held) > 0 {
		m.keep(c) // its turn comes after them
		m.proceed()
		return
	}
	m.deliver(c)
}

// deliver writes a chunk to the client and takes it into the transcript.
func (m *Machine) deliver(c *openai.Chunk) {
	if c.Done {
		m.done = true
		m.end()
		m.do(Action{Kind: WriteDone, Chunk: c, Detail: &Detail{IDs: m.shared(), Prompt: m.prompt}})
		m.do(Action{Kind: End})
		return
	}
	shown, err := m.add(c, m.splices == 0, m.cfg.Asked)
	if err != nil {
		m.lose(&MalformedError{err})
		return
	}
	m.freezeIfReady() // before the write, which may wait for the client
	if shown {
		m.do(Action{Kind: Write, Chunk: c, Edit: &m.edit})
	}
	if m.lost != nil || len(m.held) > 0 {
		m.do(Action{Kind: Resume})
		return
	}
	m.read()
}

func (m *Machine) read() { m.do(Action{Kind: Read, Leg: m.leg}) }

// proceed says how the pump goes on after anything but a chunk of the present leg.
func (m *Machine) proceed() {
	switch {
	case m.state == Ended:
		m.do(Action{Kind: End})
	case m.first != nil: // another leg has taken over
		c := m.first
		m.first = nil
		if m.splices > 0 {
			m.pin(m.fingerprint)
		}
		m.relay(c)
	case m.lost != nil:
		m.settle()
	case len(m.held) > 0 && !m.holding():
		m.deliverHeld()
	default:
		m.read()
	}
}

// deliverHeld delivers the first of the chunks that were held back.
func (m *Machine) deliverHeld() {
	c := m.held[0]
	if m.held = m.held[1:]; len(m.held) == 0 {
		m.held = nil
	}
	m.heldBytes -= len(c.Raw())
	m.deliver(c)
}

// requestEnded ends the present leg, which the pump reads, and a migration. The
// pump then ends the stream.
func (m *Machine) requestEnded(cause error) {
	if m.state == Ended || m.cause != nil {
		return
	}
	m.cause = cause
	if m.leg != nil {
		m.do(Action{Kind: Close, Leg: m.leg})
	}
	m.endMigration(ErrNoStream)
}

// end makes the stream one to which nothing is written.
func (m *Machine) end() {
	m.endMigration(ErrNoStream)
	m.state = Ended
}

// fail ends the stream with an error event, or without one when the client is
// gone.
func (m *Machine) fail(err error) {
	m.end()
	if errors.Is(err, context.Canceled) {
		m.do(Action{Kind: End})
		return
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	m.do(Action{Kind: WriteError, Err: err})
	m.do(Action{Kind: End, Err: err})
}

// aborted is the finish reason of an answer that its engine has ended early, as engines do with all of theirs when they
// are stopped. [DONE] follows it.
const aborted = "abort"

// ReportsLoss reports whether a chunk says that its engine failed, or has aborted the request.
func ReportsLoss(c *openai.Chunk) bool {
	failed := c.Failure()
	return failed != nil && openai.FailureStatus(failed) >= http.StatusInternalServerError || c.Finish && c.FinishReason() == aborted
}

// ReportedLoss returns the loss of a leg that a chunk of it reports.
func ReportedLoss(c *openai.Chunk) *ReportedError { return &ReportedError{c.Clone()} }

// ReportedError is the loss of a leg whose engine could say so.
type ReportedError struct{ chunk *openai.Chunk }

func (e *ReportedError) Error() string {
	if failed := e.chunk.Failure(); failed != nil {
		return "the engine reports " + string(failed)
	}
	return "the engine has aborted the request"
}

// Answer returns what the engine reports, as an answer that is no stream; no bytes if it is no error.
func (e *ReportedError) Answer() (status int, body []byte) {
	failed := e.chunk.Failure()
	return openai.FailureStatus(failed), failed
}

// MalformedError says that an engine's event is not one of the OpenAI API.
type MalformedError struct{ Err error }

func (e *MalformedError) Error() string {
	return fmt.Sprintf("the engine's stream is malformed: %v", e.Err)
}

// Unwrap returns what is wrong with the event.
func (e *MalformedError) Unwrap() error { return e.Err }

// Request describes the stream as it is now; the counts are those that the client
// has.
func (m *Machine) Request() policies.Request {
	r := m.cfg.Request
	if m.prompt > 0 {
		r.Input, r.Estimated = policies.Tokens(m.prompt), false
		r.Output = policies.Tokens(m.output())
	}
	r.Features = FeaturesAfter(r.Features, m.cfg.MinTokens, r.Output)
	if !m.complete {
		r.Features |= policies.HiddenTokens
	}
	return r
}

// FeaturesAfter returns what ties a request to its engine once it has output
// tokens: min_tokens does not any more when they are reached.
func FeaturesAfter(f policies.Features, minTokens, output policies.Tokens) policies.Features {
	if output >= minTokens {
		f &^= policies.MinTokens
	}
	return f
}

// Config returns what the machine knows of its request. The driver must not change it.
func (m *Machine) Config() *Config { return &m.cfg }

// Leg returns the present leg, nil before the first.
func (m *Machine) Leg() Leg { return m.leg }

// Holder returns the replica that runs the present leg.
func (m *Machine) Holder() policies.ReplicaID { return m.holder }

// Epoch returns the present epoch.
func (m *Machine) Epoch() policies.Epoch { return m.epoch }

// Pending reports whether a migration or a rescue is under way.
func (m *Machine) Pending() bool { return m.migrating() || m.rescue != nil }

// Splices returns how many legs took over from others.
func (m *Machine) Splices() int { return m.splices }

// Done reports whether the present leg brought [DONE].
func (m *Machine) Done() bool { return m.done }

// IDs returns the token ids that the client has and how many of them are the
// prompt's. They must not be changed.
func (m *Machine) IDs() (ids []uint32, prompt int) { return m.shared(), m.prompt }

// Aligned reports whether the client's text ends where its ids end.
func (m *Machine) Aligned() bool { return m.aligned }
