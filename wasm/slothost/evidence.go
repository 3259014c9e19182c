package slothost

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
)

// evidence is what a generation has shown in its phase so far, and the gate that it
// has to pass.
type evidence struct {
	Gate
	lifecycle.Figures
	lasted, patience policies.Micros
	hasNextShare     bool // a step of a canary that is not its last
}

// evidence returns the evidence about a module in shadow or in canary.
func (m *machine) evidence(c *generation) evidence {
	e := evidence{Gate: m.gates.Canary, Figures: c.figures, lasted: m.now - c.since, patience: m.gates.Patience}
	if c.phase == lifecycle.Shadow {
		e.Gate = m.gates.Shadow
	} else {
		e.hasNextShare = m.share(c) < m.maxShare(c)
	}
	return e
}

// verdict judges a phase: pass to go on, a reason to reject, or neither to wait. A
// certain reason does not wait for the calls that the gate asks for.
func (e evidence) verdict() (pass bool, reason string) {
	reason, certain := e.against()
	if certain {
		return false, reason
	}
	enough := e.Figures.Calls >= e.Gate.Calls && e.Figures.Compared >= e.Gate.Compared && e.lasted >= e.Soak
	return reason == "" && (enough || e.outOfPatience()), ""
}

// against returns what the compared answers say against the generation, and whether
// that is certain.
func (e evidence) against() (reason string, certain bool) {
	worse, certain := e.judge(e.Figures.Worse, e.Gate.Worse)
	if worse {
		reason = fmt.Sprintf("%d of %d answers are worse than the active policy's, at most %d ‰ may be", e.Figures.Worse, e.Figures.Compared, e.Gate.Worse)
	}
	return reason, certain
}

// judge reports whether n answers are more than permille of those compared, and
// whether that is certain: whether it would hold even if all missing answers were
// good. Once the missing answers are overdue, the existing ones are judged: a single
// bad one among others is ignored, two or more count, and one that is half of all or
// more waits for another.
func (e evidence) judge(n uint64, permille int) (tooMany, certain bool) {
	compared := e.Figures.Compared
	switch {
	case !over(n, permille, compared):
		return false, false
	case over(n, permille, e.needed()):
		return true, true
	case !e.overdue():
		return true, false
	}
	return n > 1 || compared <= 2, n > 1
}

// needed returns how many answers will have been compared, at least, when the gate
// may be passed.
func (e evidence) needed() uint64 {
	missing := e.Gate.Calls - min(e.Gate.Calls, e.Figures.Calls)
	return max(e.Figures.Compared+missing, e.Gate.Compared, e.Judged)
}

// overdue reports whether the phase has lasted for its patience, and would last for
// as long again before it has the answers that it needs.
func (e evidence) overdue() bool {
	n, of := float64(e.Figures.Compared), float64(e.needed())
	return e.patience >= 0 && e.lasted >= e.patience && float64(e.lasted)*(of-n) > float64(e.patience)*n
}

// outOfPatience reports whether a step of a canary has waited long enough for calls that do
// not come: it has answered some, and some were compared where the gate asks for any.
func (e evidence) outOfPatience() bool {
	return e.hasNextShare && e.patience >= 0 && e.lasted >= max(e.patience, e.Soak) &&
		e.Figures.Calls > 0 && e.Figures.Compared >= min(e.Gate.Compared, 1)
}

// over reports whether n is more than permille of all, without overflow.
func over(n uint64, permille int, all uint64) bool {
	return n > all/1000*uint64(permille)+all%1000*uint64(permille)/1000
}

// missing returns what a phase still waits for, "" when it has everything or has not
// been called yet.
func (e evidence) missing() string {
	reason, certain := e.against()
	f, g := e.Figures, e.Gate
	switch {
	case f.Calls == 0 || certain:
		return ""
	case f.Compared == 0 && g.Compared > 0 && e.lasted >= e.patience:
		return "none of its answers could be compared yet"
	case f.Calls < g.Calls:
		return fmt.Sprintf("has answered %d of %d calls", f.Calls, g.Calls)
	case f.Compared < g.Compared:
		return fmt.Sprintf("%d of %d answers are compared", f.Compared, g.Compared)
	case reason != "":
		return "too few answers to judge by"
	case e.lasted < e.Soak:
		return fmt.Sprintf("stays for %d s more", (e.Soak-e.lasted+policies.Second-1)/policies.Second)
	}
	return ""
}
