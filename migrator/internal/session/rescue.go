package session

import (
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	// MaxAttempts is how many replicas are tried after the loss of one engine.
	MaxAttempts = 3
	// MaxLosses is how many engines a request may lose within lossTokens tokens: the last of these
	// losses ends it, because it may be the request that breaks the engines.
	MaxLosses  = 2
	lossTokens = 64
)

// ErrNoRefuge says that no replica could continue a stream.
var ErrNoRefuge = errors.New("no replica could take it")

// rescue is the rescue under way.
type rescue struct {
	Rescue
	tried    []policies.ReplicaID // that lost or refused the stream
	attempts int
}

// legEnded is called when a leg cannot be read any more. It may be a former one.
func (m *Machine) legEnded(ev *Event) {
	if m.state == Ended || ev.Leg != m.leg {
		m.proceed()
		return
	}
	m.fingerprint = ev.Fingerprint
	m.lose(ev.Err)
}

// lose takes note that the present leg is lost.
func (m *Machine) lose(err error) {
	m.lost = err
	m.settle()
}

// settle says how a stream goes on whose leg is lost: with the leg of the
// migration under way, with what was held back, with the answer's end, or with a
// rescue. If it cannot, it ends.
func (m *Machine) settle() {
	if m.migrating() {
		if m.survivesLoss() {
			m.do(Action{Kind: Wait})
			return
		}
		m.endMigration(ErrHolderLost)
	}
	switch {
	case len(m.held) > 0:
		m.deliverHeld()
	case m.cause != nil:
		m.fail(m.cause)
	case isLoss(m.lost) && m.conclude(), isLoss(m.lost) && m.beginRescue():
	default:
		m.giveUp()
	}
}

// isLoss reports whether a leg ended because its engine is lost, and not because
// the engine's events cannot be read.
func isLoss(err error) bool {
	var malformed *MalformedError
	return !errors.As(err, &malformed) && !errors.Is(err, openai.ErrEventTooLarge)
}

// conclude ends a stream whose engine was lost after the finish reason: the client
// has the whole text, and the machine knows what follows. It reports false if the
// client has not, or the machine does not.
func (m *Machine) conclude() bool {
	if !m.finished || m.prompt == 0 || !m.complete || m.identity.ID == nil {
		return false
	}
	m.end()
	m.pin(m.fingerprint)
	usage, done := openai.EndingChunks(m.cfg.Endpoint, m.identity, m.usage())
	m.probe()
	m.do(Action{Kind: Report, Loss: Concluded, Err: m.lost})
	if !m.usageSent {
		m.edit = m.cfg.Asked
		m.do(Action{Kind: Write, Chunk: usage, Edit: &m.edit})
	}
	m.do(Action{Kind: WriteDone, Chunk: done, Detail: &Detail{IDs: m.shared(), Prompt: m.prompt}})
	m.do(Action{Kind: End})
	return true
}

// probe has the own engine looked at if it was the one that is lost.
func (m *Machine) probe() {
	if m.holder == m.cfg.Self {
		m.do(Action{Kind: Probe})
	}
}

// beginRescue seeks a replica for a stream whose leg is lost. It reports false if
// the stream must not go on elsewhere.
func (m *Machine) beginRescue() bool {
	if !m.cfg.CanRescue || m.final || m.finished || m.prompt == 0 ||
		policies.Movable(m.Request()) != policies.NotPinned || m.cfg.Resume.Remaining(m.output()) == 0 {
		return false
	}
	if m.output()-m.lastLoss >= lossTokens {
		m.losses = 0
	}
	if m.losses++; m.losses >= MaxLosses {
		m.do(Action{Kind: Report, Loss: Exhausted, Err: m.lost})
		return false
	}
	m.lastLoss = m.output()
	m.takeBack(m.cfg.Asked.HideIDs)
	m.rescue = &rescue{Rescue: Rescue{From: m.holder, Length: len(m.ids), Err: ErrNoRefuge}, tried: []policies.ReplicaID{m.holder}}
	m.probe()
	m.do(Action{Kind: Report, Loss: Rescuing, Err: m.lost})
	m.seek()
	return true
}

func (m *Machine) seek() {
	m.state = Seeking
	m.do(Action{Kind: Seek, Detail: &Detail{Tried: slices.Clip(m.rescue.tried)}})
}

// replicaFound opens a leg at a replica, under an epoch of its own.
func (m *Machine) replicaFound(replica policies.ReplicaID) {
	m.state = Opening
	m.epoch++
	m.rescue.To = replica
	m.do(Action{Kind: Open, Detail: &Detail{Replica: replica, Epoch: m.epoch, IDs: m.shared(), Prompt: m.prompt, Aligned: m.aligned, TextIDs: m.textIDs}})
}

// openFailed tries the next replica, unless the stream has lost too many engines.
func (m *Machine) openFailed(ev *Event) {
	r := m.rescue
	r.Err = ev.Err
	r.tried = append(r.tried, r.To)
	if ev.Lost {
		m.losses++
	}
	if r.attempts++; r.attempts < MaxAttempts && m.losses < MaxLosses && m.cause == nil {
		m.seek()
		return
	}
	m.endRescue()
}

// rescued ends a rescue whose leg has taken over.
func (m *Machine) rescued() {
	m.rescue.Err = nil
	m.reportRescue()
}

// endRescue ends a rescue that found no leg, and with it the stream.
func (m *Machine) endRescue() {
	if m.cause != nil {
		m.rescue.Err = m.cause // the client did not wait for it
	}
	m.reportRescue()
	m.giveUp()
}

func (m *Machine) reportRescue() {
	r := m.rescue.Rescue
	r.Epoch = m.epoch
	m.rescue, m.state = nil, Relaying
	m.do(Action{Kind: RescueEnded, Detail: &Detail{Rescue: &r}})
}

// giveUp ends a stream whose leg is lost for good. If the engine reported why, the
// client gets that, and what else the engine has to say.
func (m *Machine) giveUp() {
	switch c := m.failure; {
	case m.cause != nil:
		m.fail(m.cause)
	case c != nil && !m.final:
		m.final, m.failure, m.lost = true, nil, nil
		m.relay(c)
	default:
		m.fail(m.lost)
	}
}
