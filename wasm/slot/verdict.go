package slot

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
)

// verdict judges what a stage has shown so far: pass to go on, a reason against
// going on at all, or neither to wait.
func (g Gate) verdict(f Figures, lasted policies.Micros) (pass bool, reason string) {
	if f.Calls < g.Calls || f.Compared < g.Compared {
		return false, ""
	}
	reason, sure := g.against(f)
	if sure {
		return false, reason
	}
	return reason == "" && lasted >= g.Soak, ""
}

// against says what speaks against a generation by the answers that were compared,
// and whether it is sure: whether it would still be so if all that are missing to
// Judged were as they should be.
func (g Gate) against(f Figures) (reason string, sure bool) {
	of := max(f.Compared, g.Judged)
	switch {
	case over(f.Worse, g.Worse, f.Compared):
		return fmt.Sprintf("%d of %d answers worse than the active policy's, %d ‰ may be", f.Worse, f.Compared, g.Worse), over(f.Worse, g.Worse, of)
	case over(f.Differ, g.Differ, f.Compared):
		return fmt.Sprintf("%d of %d answers differ from the active policy's, %d ‰ may", f.Differ, f.Compared, g.Differ), over(f.Differ, g.Differ, of)
	}
	return "", false
}

// skips reports whether a step of a canary has waited long enough for calls that do
// not come: it has answered some, and nothing speaks against it.
func (g Gate) skips(f Figures, lasted, patience policies.Micros) bool {
	if patience < 0 || lasted < max(patience, g.Soak) || f.Calls == 0 {
		return false
	}
	reason, _ := g.against(f)
	return reason == ""
}

// over reports whether n of all is more than so many ‰, without overflow.
func over(n uint64, permille int, all uint64) bool {
	return n > all/1000*uint64(permille)+all%1000*uint64(permille)/1000
}

// missing says what a stage still waits for, "" when it has all or was not asked
// yet.
func (g Gate) missing(f Figures, lasted policies.Micros) string {
	reason, sure := g.against(f)
	switch {
	case f.Calls == 0 || sure:
		return ""
	case f.Calls < g.Calls:
		return fmt.Sprintf("has answered %d of %d calls%s", f.Calls, g.Calls, expected(f.Calls, g.Calls, lasted))
	case f.Compared < g.Compared:
		return fmt.Sprintf("%d of %d answers are compared%s", f.Compared, g.Compared, expected(f.Compared, g.Compared, lasted))
	case reason != "":
		return fmt.Sprintf("%s: too few to judge by%s", reason, expected(f.Compared, g.Judged, lasted))
	case lasted < g.Soak:
		return "stays for " + span(g.Soak-lasted) + " more"
	}
	return ""
}

// expected says when so many of something will have come at its present pace.
func expected(n, of uint64, lasted policies.Micros) string {
	if n == 0 || n >= of || lasted <= 0 {
		return ""
	}
	return ", the others in " + span(policies.Micros(float64(lasted)/float64(n)*float64(of-n))) + " or so"
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
