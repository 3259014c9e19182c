package session

import "fmt"

// Validate reports the first invariant of the Machine that its state violates. The checker checks
// the invariants on actions.
func (m *Machine) Validate() error {
	held := 0
	for _, c := range m.held {
		held += len(c.Raw())
	}
	switch {
	case m.out != nil:
		return fmt.Errorf("actions are left of a step")
	case m.prompt > m.textIDs || m.textIDs > len(m.ids) || m.hashed > len(m.ids):
		return fmt.Errorf("invariant 1: %d ids, %d of the prompt, %d at the last text, %d hashed", len(m.ids), m.prompt, m.textIDs, m.hashed)
	case m.aligned && m.prompt > 0 && m.textIDs != len(m.ids):
		return fmt.Errorf("invariant 1: aligned with %d ids and %d at the last text", len(m.ids), m.textIDs)
	case held != m.heldBytes:
		return fmt.Errorf("invariant 2: %d bytes are held and %d counted", held, m.heldBytes)
	case (m.rescue != nil) != (m.state == Seeking || m.state == Opening):
		return fmt.Errorf("invariant 4: state %v with rescue %+v", m.state, m.rescue)
	case m.migrating() && m.migration.number != m.epoch+1:
		return fmt.Errorf("invariant 5: migration %d in epoch %d", m.migration.number, m.epoch)
	case (m.leg == nil) && m.state != Starting && m.state != Ended:
		return fmt.Errorf("invariant 6: state %v without a leg", m.state)
	case m.first != nil && m.lost != nil:
		return fmt.Errorf("invariant 6: the present leg is lost before its first chunk was relayed")
	case m.failure != nil && m.lost == nil:
		return fmt.Errorf("a leg reported its loss and is not lost")
	case m.done && m.state != Ended:
		return fmt.Errorf("invariant 7: [DONE] in state %v", m.state)
	}
	return nil
}

// checker observes a machine's actions and checks the invariants on them.
type checker struct {
	m                   *Machine
	legs                map[Leg]bool    // opened legs; true unless closed
	epochs              map[uint64]bool // used by an attempt
	migrations, rescues int             // number in progress
	epoch               uint64
}

func newChecker(m *Machine) *checker {
	return &checker{m: m, legs: make(map[Leg]bool), epochs: map[uint64]bool{1: true}, epoch: 1}
}

// pumps reports whether the pump produces events of this kind.
func (k EventKind) pumps() bool { return k >= LegOpened && k <= ClientFailed }

// step steps the machine and checks its actions.
func (c *checker) step(ev Event) ([]Action, error) {
	wasFrozen, wasLeg, before := c.m.holding(), c.m.leg, len(c.m.ids)
	wasEnded := c.m.state == Ended
	if ev.Kind == LegOpened || ev.Kind == MigrationLegOpened {
		c.legs[ev.Leg] = true
	}
	acts := c.m.Step(&ev, nil)
	if err := c.m.Validate(); err != nil {
		return acts, err
	}
	directives, thawed := 0, ev.Kind == TextChecked
	for i, a := range acts {
		if isDirective(a.Kind) {
			if directives++; i != len(acts)-1 {
				return acts, fmt.Errorf("invariant 3: %v is not the last of %v", a.Kind, describe(acts))
			}
		}
		switch a.Kind {
		case Write, WriteDone, WriteError:
			switch {
			case !ev.Kind.pumps():
				return acts, fmt.Errorf("invariant 3: a step that is not the pump's has %v", describe(acts))
			case wasEnded:
				return acts, fmt.Errorf("invariant 7: %v after the end", a.Kind)
			case wasFrozen && !thawed:
				return acts, fmt.Errorf("invariant 2: %v while frozen", a.Kind)
			case a.Kind == Write && ev.Kind == ChunkArrived && ev.Leg != c.m.leg && ev.Chunk == a.Chunk:
				return acts, fmt.Errorf("invariant 1: a former leg's chunk is written")
			}
		case MigrationBegan:
			if c.migrations++; c.migrations+c.rescues > 1 || !c.newEpoch(uint64(a.Migration)) {
				return acts, fmt.Errorf("invariants 4, 5: %v with %d migrations and %d rescues", describe(acts), c.migrations, c.rescues)
			}
		case MigrationRenewed:
			if c.migrations != 1 || !c.newEpoch(uint64(a.Migration)) {
				return acts, fmt.Errorf("invariants 4, 5: %v with %d migrations", describe(acts), c.migrations)
			}
		case MigrationEnded:
			thawed = true
			if c.migrations--; c.migrations < 0 {
				return acts, fmt.Errorf("invariant 4: %v and none has begun", a.Kind)
			}
		case Report:
			if a.Loss == Rescuing {
				if c.rescues++; c.migrations+c.rescues > 1 {
					return acts, fmt.Errorf("invariant 4: %v with %d migrations and %d rescues", describe(acts), c.migrations, c.rescues)
				}
			}
		case RescueEnded:
			if c.rescues--; c.rescues < 0 {
				return acts, fmt.Errorf("invariant 4: %v and none has begun", a.Kind)
			}
		case Open:
			if !c.newEpoch(uint64(a.Epoch)) {
				return acts, fmt.Errorf("invariant 5: epoch %d is used twice", a.Epoch)
			}
		case Close, Leave:
			c.legs[a.Leg] = false
		}
	}
	for leg, open := range c.legs {
		if open && leg != c.m.leg {
			return acts, fmt.Errorf("invariant 6: leg %v is neither the present one nor closed", leg)
		}
	}
	want := 0
	if ev.Kind.pumps() {
		want = 1
	}
	switch {
	case directives != want:
		return acts, fmt.Errorf("invariant 3: event %d has %d directives: %v", ev.Kind, directives, describe(acts))
	case uint64(c.m.epoch) < c.epoch:
		return acts, fmt.Errorf("invariant 5: the epoch goes from %d to %d", c.epoch, c.m.epoch)
	case wasFrozen && !thawed && (len(c.m.ids) != before || c.m.leg != wasLeg):
		return acts, fmt.Errorf("invariant 2: a frozen stream changes from %d to %d ids", before, len(c.m.ids))
	case wasEnded && (c.m.state != Ended || len(acts) > 1 || len(acts) == 1 && !final[acts[0].Kind]):
		return acts, fmt.Errorf("invariant 7: after the end: %v", describe(acts))
	}
	c.epoch = uint64(c.m.epoch)
	return acts, nil
}

// final are the actions that an ended stream may still request.
var final = map[ActionKind]bool{End: true, MigrationRefused: true, Leave: true}

func (c *checker) newEpoch(e uint64) bool {
	if c.epochs[e] {
		return false
	}
	c.epochs[e] = true
	return true
}

func describe(acts []Action) (all []string) {
	for _, a := range acts {
		all = append(all, a.Kind.String())
	}
	return all
}
