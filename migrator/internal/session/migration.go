package session

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// MaxHeld bounds, in bytes, what is held back of one stream while it is frozen.
const MaxHeld = 4 << 20

// Why a migration is refused, beside a reason of policies.Movable.
var (
	// ErrNoStream says that the stream is over: nothing reads its tokens any more.
	ErrNoStream = errors.New("no such stream, or it is over")
	// ErrStaleEpoch says that the stream is not at that holder in that epoch, or
	// that another migration of it is under way.
	ErrStaleEpoch = errors.New("the stream is not at that holder in that epoch")
	// ErrNotBegun says that the client has no token yet.
	ErrNotBegun = errors.New("the stream has no token yet")
)

// Why a migration ends without its leg.
var (
	ErrOverrun    = errors.New("the present holder sent more tokens than the migration counts")
	ErrHash       = errors.New("the stream's token ids are not those of the migration")
	ErrHiddenIDs  = errors.New("the stream's token ids are not known")
	ErrHeld       = errors.New("the present holder sent too much while the stream was frozen")
	ErrHolderLost = errors.New("the present holder was lost")
)

// migration is the migration under way.
type migration struct {
	number policies.Epoch // the epoch of its leg
	length int            // freeze at exactly so many ids; 0: where the text is aligned
	hash   prefix.Hash    // of these ids
}

func (m *Machine) migrating() bool {
	return m.state == Claimed || m.state == Freezing || m.holding()
}

// holding reports whether chunks of the present leg are held back.
func (m *Machine) holding() bool { return m.state == Checking || m.state == Frozen }

// requestMigration claims the stream if it is where the event says.
func (m *Machine) requestMigration(ev *Event) {
	err := error(nil)
	switch why := policies.Movable(m.Request()); {
	case m.state == Ended || m.finished || m.cause != nil:
		err = ErrNoStream
	case m.holder != ev.From || m.epoch != ev.Epoch || m.Pending():
		err = ErrStaleEpoch
	case m.state == Starting:
		err = ErrNotBegun
	case why != policies.NotPinned:
		err = fmt.Errorf("the stream cannot migrate: %v", why)
	case m.prompt == 0 || m.output() == 0:
		err = ErrNotBegun
	}
	if err != nil {
		m.do(Action{Kind: MigrationRefused, Err: err})
		return
	}
	m.state, m.uncheckable = Claimed, false
	m.migration = migration{number: ev.Epoch + 1, length: ev.Length, hash: ev.Hash}
	m.do(Action{Kind: MigrationBegan, Detail: &Detail{Migration: m.migration.number}})
}

// requestFreeze makes the stream freeze as soon as it can.
func (m *Machine) requestFreeze(number policies.Epoch) {
	if m.state == Claimed && m.migration.number == number {
		m.state = Freezing
		m.freezeIfReady()
	}
}

// freezeIfReady freezes the stream if the client has the ids that the migration
// needs, and ends the migration if it can never have them.
func (m *Machine) freezeIfReady() {
	length := m.migration.length
	switch {
	case !m.migrating():
	case m.finished:
		m.endMigration(ErrNoStream) // a request that ends while it migrates wins
	case !m.complete:
		m.endMigration(ErrHiddenIDs)
	case m.state != Freezing:
	case length == 0 && m.mayBeAligned && !m.uncheckable:
		m.state = Checking
		m.do(Action{Kind: CheckText, Detail: &Detail{Migration: m.migration.number, IDs: m.shared()}})
	case length == 0 && m.aligned, length > 0 && length == len(m.ids):
		m.freeze()
	case length > 0 && len(m.ids) > length:
		m.endMigration(ErrOverrun)
	}
}

func (m *Machine) freeze() {
	if m.addHash(); m.migration.length > 0 && m.hash != m.migration.hash {
		m.endMigration(ErrHash)
		return
	}
	m.state = Frozen
	m.do(Action{Kind: StreamFrozen, Detail: &Detail{Migration: m.migration.number, IDs: m.shared(), Prompt: m.prompt}})
}

// textChecked freezes a stream whose text ends where its ids end, and lets another go on
// to the next place where it may.
func (m *Machine) textChecked(ev *Event) {
	if m.state != Checking || m.migration.number != ev.Migration {
		return
	}
	m.mayBeAligned, m.uncheckable = false, ev.Err != nil
	switch {
	case ev.Aligned && ev.Err == nil:
		m.aligned, m.textAligned = true, true
		m.freeze()
	case m.lost != nil:
		m.endMigration(ErrHolderLost)
	default:
		m.state = Freezing
	}
}

// hold keeps back a chunk of a frozen stream. The error says why it must not wait:
// it is the stream's end, a token after those of a live migration, or too much.
func (m *Machine) hold(c *openai.Chunk) error {
	switch {
	case c.Finish || c.Done || c.Failure() != nil:
		return ErrNoStream
	case m.migration.length > 0 && (c.Tokens > 0 || c.HasText):
		return ErrOverrun
	case m.heldBytes+len(c.Raw()) > MaxHeld:
		return ErrHeld
	}
	m.keep(c)
	return nil
}

// keep appends a chunk to those that are held back.
func (m *Machine) keep(c *openai.Chunk) {
	m.held = append(m.held, c.Clone())
	m.heldBytes += len(c.Raw())
}

// survivesLoss reports whether the migration can go on without the present leg
// because the client has all ids that it needs, or may have. A stream that can be
// frozen is.
func (m *Machine) survivesLoss() bool {
	if !m.holding() && m.migration.length == 0 && m.aligned {
		m.freeze()
	}
	return m.holding()
}

// migrationFailed ends a migration whose target gives no leg.
func (m *Machine) migrationFailed(ev *Event) {
	if m.migrating() && m.migration.number == ev.Migration {
		m.endMigration(ev.Err)
	}
}

// renewMigration gives a migration whose leg was discarded another number, so that no
// two legs have one epoch.
func (m *Machine) renewMigration(number policies.Epoch) {
	if m.migrating() && m.migration.number == number {
		m.epoch++
		m.migration.number++
		m.do(Action{Kind: MigrationRenewed, Detail: &Detail{Migration: m.migration.number}})
	}
}

// endMigration ends the migration, if there is one. Unless err is nil the stream
// goes on with the present leg.
func (m *Machine) endMigration(err error) {
	if !m.migrating() {
		return
	}
	if err != nil {
		m.epoch += 2 // the one between was that of the migration's leg
	}
	m.state = Relaying
	m.do(Action{Kind: MigrationEnded, Err: err, Detail: &Detail{Migration: m.migration.number, Epoch: m.epoch}})
}
