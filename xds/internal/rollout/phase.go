package rollout

// Phase is where a group is.
type Phase uint8

const (
	Idle   Phase = iota // one table is all that is shown
	Add                 // old routes, endpoints of the old plans and the new one
	Flip                // new routes, the same endpoints
	Watch               // as Flip, acknowledged; the other groups have their turn
	Retire              // as Idle, and removed endpoints drain
)

// String names the phase in lower case.
func (p Phase) String() string { return [...]string{"idle", "add", "flip", "watch", "retire"}[p] }

// phaseMachine is the steps of one group from a table to the next. The zero value
// has shown nothing. A table that is wanted while another one is on its way
// takes its place; what some node may have applied of that one stays live until
// it cannot be in use any more. The machine is never in Retire.
type phaseMachine struct {
	phase Phase
	live  []*Table // whose routes some node may have, the last settled one first; the last one is shown in Idle and Add
	next  *Table   // nil in Idle
}

// maxLive bounds how many tables are live when another one is begun with. The
// first one is what the group can go back to, and always stays; going back makes
// one more.
const maxLive = 4

// isEmpty reports whether nothing was shown yet.
func (m *phaseMachine) isEmpty() bool { return len(m.live) == 0 }

// isFull reports whether another table would push one out that some node may have.
func (m *phaseMachine) isFull() bool { return m.phase == Flip && len(m.live) >= maxLive }

// setTarget begins to go to a table, or goes on with it instead of another one.
func (m *phaseMachine) setTarget(t *Table) {
	switch {
	case m.isEmpty():
		m.live = []*Table{t} // nobody has routes yet
		return
	case (m.phase == Flip || m.phase == Watch) && !t.sameRoutes(m.next):
		m.supersede()
		m.phase = Add
	case m.phase == Idle:
		m.phase = Add
	}
	m.next = t
}

// advance says that the nodes which count have acknowledged the phase, or are
// not waited for any longer.
func (m *phaseMachine) advance() {
	switch m.phase {
	case Add:
		m.phase = Flip
	case Flip:
		m.phase, m.live = Watch, m.live[:1:1] // nobody has the routes of those between
	}
}

// finish leaves the old table behind, and returns it.
func (m *phaseMachine) finish() *Table {
	old := m.live[0]
	m.phase, m.live, m.next = Idle, []*Table{m.next}, nil
	return old
}

// revertTo returns to a table whose members are shown because it was the last
// settled one: in one step, and none where nobody can have other routes.
func (m *phaseMachine) revertTo(t *Table) {
	switch {
	case m.phase == Idle:
		m.setTarget(t)
		return
	case m.phase == Add && len(m.live) == 1:
		m.phase, m.live, m.next = Idle, []*Table{t}, nil
		return
	case m.phase != Add:
		m.supersede()
	}
	m.phase, m.next = Flip, t
}

// abort ends where it is: the phase could not be shown.
func (m *phaseMachine) abort() {
	if m.phase == Flip || m.phase == Watch {
		m.supersede() // the new routes may have been shown before
	}
	m.next, m.phase = nil, Idle
}

// supersede makes the table that is being flipped to one of those that some
// node may have.
func (m *phaseMachine) supersede() {
	rest := append(m.live[1:len(m.live):len(m.live)], m.next)
	rest = rest[max(0, len(rest)-maxLive):]
	m.live = append(m.live[:1:1], rest...)
}

// layers describes the present phase.
func (m *phaseMachine) layers() layers {
	shown := m.live[len(m.live)-1]
	switch m.phase {
	case Add:
		return layers{routes: shown, newest: m.next, live: m.live}
	case Flip, Watch:
		return layers{routes: m.next, newest: m.next, live: m.live}
	}
	return layers{routes: shown, newest: shown}
}

// newest is the table whose endpoints are shown.
func (m *phaseMachine) newest() *Table {
	if m.isEmpty() {
		return nil
	}
	return m.layers().newest
}
