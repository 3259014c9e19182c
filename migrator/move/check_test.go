package move

import "fmt"

// Check reports the first contradiction in a machine's state.
func (m *Machine) Check() error {
	for n, x := range m.exports {
		switch {
		case x.deal.Seller != m.cfg.Self:
			return fmt.Errorf("export %v belongs to another seller", x.deal)
		case x.frozen && x.state < freezing || !x.frozen && (x.state == freezing || x.state == verifying):
			return fmt.Errorf("export %v: frozen is %v in state %v", x.deal, x.frozen, x.state)
		case x.state == committing && (x.deadline != 0 || x.retry == 0 || x.frozen != (x.mode == Live)):
			return fmt.Errorf("export %v: swapping with deadline %d, retry %d, frozen %v", x.deal, x.deadline, x.retry, x.frozen)
		case x.state != committing && (x.deadline == 0 || x.retry != 0):
			return fmt.Errorf("export %v: deadline %d and retry %d in state %v", x.deal, x.deadline, x.retry, x.state)
		case x.from > x.computed:
			return fmt.Errorf("export %v: from %d to %d", x.deal, x.from, x.computed)
		}
		for _, o := range m.exports[:n] {
			if o.deal == x.deal || o.request.ID == x.request.ID {
				return fmt.Errorf("exports %v and %v of one request", o.deal, x.deal)
			}
		}
	}
	for n, i := range m.imports {
		switch {
		case i.deadline == 0 || i.retry == 0:
			return fmt.Errorf("import %v: deadline %d and retry %d in state %v", i.deal, i.deadline, i.retry, i.state)
		case i.state == pulling && i.end < i.position:
			return fmt.Errorf("import %v: a round that ends at %d, of %d", i.deal, i.end, i.position)
		}
		for _, o := range m.imports[:n] {
			if o.deal == i.deal {
				return fmt.Errorf("two imports of %v", i.deal)
			}
		}
	}
	for n, c := range m.commits {
		if _, ok := m.commitResults.get(c.deal); ok {
			return fmt.Errorf("commit of %v is answered already", c.deal)
		}
		for _, o := range m.commits[:n] {
			if o.deal == c.deal {
				return fmt.Errorf("two commits of %v", c.deal)
			}
		}
	}
	if len(m.local) > 0 || m.out != nil {
		return fmt.Errorf("messages or actions are left after a step")
	}
	return nil
}
