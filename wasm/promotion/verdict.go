package promotion

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

// stand is what a life has shown in its stage so far.
type stand struct {
	Gate
	Figures
	lasted, patience policies.Micros
	passing          bool // a step of a canary that is not its last
}

// stand is a life's, in shadow or in canary.
func (m *Machine) stand(c *life) stand {
	s := stand{Gate: m.c.Canary, Figures: c.figures, lasted: m.now - c.since, patience: m.c.Patience}
	if c.state == InShadow {
		s.Gate = m.c.Shadow
	} else {
		s.passing = m.share(c) < m.limit(c)
	}
	return s
}

// verdict judges a stage: pass to go on, a reason against going on at all, or neither
// to wait. What is sure does not wait for the calls that are asked for.
func (s stand) verdict() (pass bool, reason string) {
	reason, sure := s.against()
	if sure {
		return false, reason
	}
	enough := s.Figures.Calls >= s.Gate.Calls && s.Figures.Compared >= s.Gate.Compared && s.lasted >= s.Soak
	return reason == "" && (enough || s.skips()), ""
}

// against says what speaks against a generation by the answers that were compared,
// and whether it is sure.
func (s stand) against() (reason string, sure bool) {
	worse, sure := s.judge(s.Figures.Worse, s.Gate.Worse)
	if worse {
		reason = fmt.Sprintf("%d of %d answers worse than the active policy's, %d ‰ may be", s.Figures.Worse, s.Figures.Compared, s.Gate.Worse)
	}
	if sure {
		return reason, true
	}
	differ, sure := s.judge(s.Figures.Differ, s.Gate.Differ)
	if differ && (sure || !worse) {
		reason = fmt.Sprintf("%d of %d answers differ from the active policy's, %d ‰ may", s.Figures.Differ, s.Figures.Compared, s.Gate.Differ)
	}
	return reason, sure
}

// judge says whether n answers are more than so many ‰ of those compared, and whether
// that is sure: whether it would still be so if all that are missing were as they
// should be. Where the missing ones do not come, it is judged of those there are: a
// single one among others says nothing then, two or more do, and one that is half of
// all or more waits for another.
func (s stand) judge(n uint64, permille int) (doubt, sure bool) {
	compared := s.Figures.Compared
	switch {
	case !over(n, permille, compared):
		return false, false
	case over(n, permille, s.needed()):
		return true, true
	case !s.late():
		return true, false
	}
	return n > 1 || compared <= 2, n > 1
}

// needed is how many answers will have been compared, at least, when the gate may be
// passed.
func (s stand) needed() uint64 {
	missing := s.Gate.Calls - min(s.Gate.Calls, s.Figures.Calls)
	return max(s.Figures.Compared+missing, s.Gate.Compared, s.Judged)
}

// late reports whether the stage has lasted for its patience, and would for as long
// again before it has the answers it needs.
func (s stand) late() bool {
	n, of := float64(s.Figures.Compared), float64(s.needed())
	return s.patience >= 0 && s.lasted >= s.patience && float64(s.lasted)*(of-n) > float64(s.patience)*n
}

// skips reports whether a step of a canary has waited long enough for calls that do
// not come: it has answered some, and some were compared where they are to be.
func (s stand) skips() bool {
	return s.leaves() && s.lasted >= max(s.patience, s.Soak)
}

// leaves reports whether patience will end the step if nothing else does.
func (s stand) leaves() bool {
	return s.passing && s.patience >= 0 && s.Figures.Calls > 0 && s.Figures.Compared >= min(s.Gate.Compared, 1)
}

// over reports whether n of all is more than so many ‰, without overflow.
func over(n uint64, permille int, all uint64) bool {
	return n > all/1000*uint64(permille)+all%1000*uint64(permille)/1000
}

// missing says what a stage still waits for, "" when it has all or was not asked
// yet.
func (s stand) missing() string {
	reason, sure := s.against()
	f, g := s.Figures, s.Gate
	switch {
	case f.Calls == 0 || sure:
		return ""
	case f.Compared == 0 && g.Compared > 0 && s.lasted >= s.patience:
		return "none of its answers could be compared yet"
	case f.Calls < g.Calls:
		return fmt.Sprintf("has answered %d of %d calls%s", f.Calls, g.Calls, s.expected(f.Calls, g.Calls))
	case f.Compared < g.Compared:
		return fmt.Sprintf("%d of %d answers are compared%s", f.Compared, g.Compared, s.expected(f.Compared, g.Compared))
	case reason != "" && s.late():
		return "too few to judge by, a third one would do"
	case reason != "":
		return "too few to judge by" + s.expected(f.Compared, s.needed())
	case s.lasted < s.Soak:
		return "stays for " + span(s.Soak-s.lasted) + " more"
	}
	return ""
}

// expected says when so many of something will have come at its present pace, or what
// comes first.
func (s stand) expected(n, of uint64) string {
	if n == 0 || n >= of || s.lasted <= 0 {
		return ""
	}
	left := policies.Micros(float64(s.lasted) / float64(n) * float64(of-n))
	reason, _ := s.against()
	switch rest := max(s.patience, s.Soak) - s.lasted; {
	case reason == "" && s.leaves() && rest < left:
		return fmt.Sprintf(", goes on in %s without the others", span(max(rest, 0)))
	case reason != "" && s.patience >= 0 && rest > 0 && left-rest > s.patience:
		return fmt.Sprintf(", is judged by those there are in %s", span(rest))
	}
	return ", the others in " + span(left) + " or so"
}

// span is a time in words, rounded up.
func span(t policies.Micros) string {
	up := func(unit policies.Micros) policies.Micros { return (t + unit - 1) / unit }
	const minute, hour = 60 * policies.Second, 3600 * policies.Second
	switch {
	case t > 2*hour:
		return fmt.Sprintf("%d h", up(hour))
	case t > 2*minute:
		return fmt.Sprintf("%d min", up(minute))
	}
	return fmt.Sprintf("%d s", up(policies.Second))
}
