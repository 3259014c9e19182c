package transfer

import "fmt"

// Check reports the first contradiction in a machine's state.
func (m *Machine) Check() error {
	for n, x := range m.exports {
		switch {
		case x.move.Seller != m.c.Self:
			return fmt.Errorf("export %v is another's", x.move)
		case x.frozen && x.stand < freezing || !x.frozen && (x.stand == freezing || x.stand == manifest):
			return fmt.Errorf("export %v: frozen is %v in stand %d", x.move, x.frozen, x.stand)
		case x.stand == swapping && (x.deadline != 0 || x.retry == 0 || x.frozen != (x.way == Live)):
			return fmt.Errorf("export %v: swapping with deadline %d, retry %d, frozen %v", x.move, x.deadline, x.retry, x.frozen)
		case x.stand != swapping && (x.deadline == 0 || x.retry != 0):
			return fmt.Errorf("export %v: deadline %d and retry %d in stand %d", x.move, x.deadline, x.retry, x.stand)
		case x.from > x.computed:
			return fmt.Errorf("export %v: from %d to %d", x.move, x.from, x.computed)
		}
		for _, o := range m.exports[:n] {
			if o.move == x.move || o.subject.Request == x.subject.Request {
				return fmt.Errorf("exports %v and %v of one request", o.move, x.move)
			}
		}
	}
	for n, i := range m.imports {
		switch {
		case i.deadline == 0 || i.retry == 0:
			return fmt.Errorf("import %v: deadline %d and retry %d in state %d", i.move, i.deadline, i.retry, i.state)
		case (i.state == pulling) != (i.pull.Kind == Pull):
			return fmt.Errorf("import %v: pull %v in state %d", i.move, i.pull.Kind, i.state)
		}
		for _, o := range m.imports[:n] {
			if o.move == i.move {
				return fmt.Errorf("two imports of %v", i.move)
			}
		}
	}
	for n, c := range m.commits {
		if _, ok := m.answered.get(c.move); ok {
			return fmt.Errorf("move %v is answered already", c.move)
		}
		for _, o := range m.commits[:n] {
			if o.move == c.move {
				return fmt.Errorf("two commits of %v", c.move)
			}
		}
	}
	if len(m.local) > 0 || m.out != nil {
		return fmt.Errorf("something is left of a step")
	}
	return nil
}
