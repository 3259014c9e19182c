package publish

import "github.com/cascadeinfer/cascade/xds/resources"

// Table is a view and what it renders to, proven.
type Table struct {
	View resources.View
	Set  resources.Set
}

// sameRoutes reports whether two tables route alike, whatever their endpoints.
func (t *Table) sameRoutes(o *Table) bool {
	return t.Set.Equal(o.Set, resources.RouteType, resources.ListenerType)
}

// Phase is where a rollout is.
type Phase uint8

const (
	Idle Phase = iota // what was wanted last is all that is shown
	Add               // old routes, endpoints of the old plans and the new one
	Flip              // new routes, the same endpoints
)

// String names the phase in lower case.
func (p Phase) String() string { return [...]string{"idle", "add", "flip"}[p] }

// Event is what happens to a rollout: a Want, a Settled or an Abort.
type Event interface{ event() }

// Want says that the fleet should be shown a table.
type Want struct{ Table *Table }

// Settled says that the nodes which count have acknowledged the phase, or that
// they are not waited for any longer.
type Settled struct{}

// Abort says that the phase could not be shown. The rollout ends where it is.
type Abort struct{}

func (Want) event()    {}
func (Settled) event() {}
func (Abort) event()   {}

// Show says what to show now.
type Show struct {
	Phase  Phase
	Routes *Table   // whose routes and listeners
	Newest *Table   // whose endpoints, in any case
	Live   []*Table // whose members are added to them, oldest first
}

// Machine is the state of a rollout. It is pure: no clock, no I/O, no
// goroutine. The zero value has shown nothing. A table that is wanted while
// another one is on its way takes its place; what some node may have applied
// of that one stays live until it cannot be in use any more.
type Machine struct {
	phase Phase
	live  []*Table // whose routes some node may have; the last one is shown in Idle and Add
	next  *Table   // nil in Idle
}

// maxLive bounds how many superseded tables are kept live. A node that is so
// far behind is fenced.
const maxLive = 4

// Phase returns where the rollout is.
func (m *Machine) Phase() Phase { return m.phase }

// Step applies an event; ok says that something is to be shown.
func (m *Machine) Step(e Event) (s Show, ok bool) {
	switch e := e.(type) {
	case Want:
		return m.want(e.Table), true
	case Settled:
		switch m.phase {
		case Add:
			m.phase = Flip
			return m.show(), true
		case Flip:
			m.live, m.next, m.phase = []*Table{m.next}, nil, Idle
			return m.show(), true
		}
	case Abort:
		if m.phase == Flip {
			// The new routes may have been shown before.
			m.supersede()
		}
		m.next, m.phase = nil, Idle
	}
	return Show{}, false
}

func (m *Machine) want(t *Table) Show {
	switch {
	case len(m.live) == 0:
		m.live = []*Table{t} // nobody has routes yet
		return m.show()
	case m.phase == Flip && !t.sameRoutes(m.next):
		m.supersede()
		m.phase = Add
	case m.phase == Idle:
		m.phase = Add
	}
	m.next = t
	return m.show()
}

// supersede makes the table that is being flipped to one of those that some
// node may have.
func (m *Machine) supersede() {
	live := append(m.live[:len(m.live):len(m.live)], m.next)
	m.live = live[max(0, len(live)-maxLive):]
}

// show describes the present phase.
func (m *Machine) show() Show {
	shown := m.live[len(m.live)-1]
	switch m.phase {
	case Add:
		return Show{Phase: Add, Routes: shown, Newest: m.next, Live: m.live}
	case Flip:
		return Show{Phase: Flip, Routes: m.next, Newest: m.next, Live: m.live}
	}
	return Show{Phase: Idle, Routes: shown, Newest: shown}
}
