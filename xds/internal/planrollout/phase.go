package planrollout

// Phase is the step of a group's transition from one plan to the next.
type Phase uint8

const (
	Idle   Phase = iota // the group has one snapshot
	Add                 // old routes; endpoints of the old plans and of the new one
	Flip                // new routes; endpoints as in Add
	Watch               // as Flip, acknowledged; the plan is on trial and the other groups follow
	Retire              // as Idle, while removed endpoints drain
)

// String returns the phase in lower case.
func (p Phase) String() string { return [...]string{"idle", "add", "flip", "watch", "retire"}[p] }

// phaseMachine moves one group from a snapshot to the next. The zero value has no
// snapshot. A new target replaces the one in progress; snapshots whose routes a node may
// have applied stay live until no node can have them any more. The machine is never
// in Retire.
type phaseMachine struct {
	phase Phase
	live  []*Snapshot // snapshots whose routes a node may have, the last settled one first; the last one provides the routes in Idle and Add
	next  *Snapshot   // the snapshot in progress; nil in Idle
}

// maxLive bounds how many snapshots are live when a transition begins. The first
// one is the target of a rollback and always stays; a rollback adds one more.
const maxLive = 4

// isEmpty reports whether the group has no snapshot yet.
func (m *phaseMachine) isEmpty() bool { return len(m.live) == 0 }

// isFull reports whether another snapshot would push out one that a node may have.
func (m *phaseMachine) isFull() bool { return m.phase == Flip && len(m.live) >= maxLive }

// setTarget begins the transition to a snapshot, or replaces the one in progress.
func (m *phaseMachine) setTarget(t *Snapshot) {
	switch {
	case m.isEmpty():
		m.live = []*Snapshot{t} // no node has routes yet
		return
	case (m.phase == Flip || m.phase == Watch) && !t.sameRoutes(m.next):
		m.supersede()
		m.phase = Add
	case m.phase == Idle:
		m.phase = Add
	}
	m.next = t
}

// advance begins the next phase. The nodes of the group have acknowledged the
// present one, or are fenced.
func (m *phaseMachine) advance() {
	switch m.phase {
	case Add:
		m.phase = Flip
	case Flip:
		m.phase, m.live = Watch, m.live[:1:1] // no node has the routes of the snapshots between
	}
}

// finish drops the old snapshot and returns it.
func (m *phaseMachine) finish() *Snapshot {
	old := m.live[0]
	m.phase, m.live, m.next = Idle, []*Snapshot{m.next}, nil
	return old
}

// revertTo reverts to the last settled snapshot, whose members are still present. This
// takes one step, or none if no node can have other routes.
func (m *phaseMachine) revertTo(t *Snapshot) {
	switch {
	case m.phase == Idle:
		m.setTarget(t)
		return
	case m.phase == Add && len(m.live) == 1:
		m.phase, m.live, m.next = Idle, []*Snapshot{t}, nil
		return
	case m.phase != Add:
		m.supersede()
	}
	m.phase, m.next = Flip, t
}

// abort ends a transition whose next phase could not be applied.
func (m *phaseMachine) abort() {
	if m.phase == Flip || m.phase == Watch {
		m.supersede() // nodes may have the new routes already
	}
	m.next, m.phase = nil, Idle
}

// supersede moves the snapshot in progress to those whose routes a node may have.
func (m *phaseMachine) supersede() {
	rest := append(m.live[1:len(m.live):len(m.live)], m.next)
	rest = rest[max(0, len(rest)-maxLive):]
	m.live = append(m.live[:1:1], rest...)
}

// layers returns the layers of the present phase.
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

// newest returns the snapshot that provides the endpoints, nil if there is none yet.
func (m *phaseMachine) newest() *Snapshot {
	if m.isEmpty() {
		return nil
	}
	return m.layers().newest
}
