package testkit_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// ended records how a test ends, and lets it go on.
type ended struct {
	testing.TB
	by string
}

func (e *ended) Helper()      {}
func (e *ended) Fatal(...any) { e.by += "fatal " }
func (e *ended) Skip(...any)  { e.by += "skip " }

// TestSkip: what continuous integration must have is skipped elsewhere only.
func TestSkip(t *testing.T) {
	for _, c := range []struct {
		ci   string
		inCI bool
		want string
	}{{"", true, "skip "}, {"", false, "skip "}, {"true", false, "skip "}, {"true", true, "fatal skip "}} {
		t.Setenv("CI", c.ci)
		e := &ended{}
		testkit.Skip(e, testkit.Unavailable{What: "gcc is not installed", Remedy: "install it", InCI: c.inCI})
		if e.by != c.want {
			t.Errorf("CI=%q, InCI %v: %q, want %q", c.ci, c.inCI, e.by, c.want)
		}
	}
}
