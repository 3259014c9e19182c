package slothost

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/host/hosttest"
)

// clock is a clock that changes only when the test sets it.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.Unix(c.at.Load(), 0) }
func (c *clock) set(t time.Time)      { c.at.Store(t.Unix()) }
func (c *clock) add(by time.Duration) { c.at.Add(int64(by / time.Second)) }

// ending returns a candidate whose statement expires at end.
func ending(t testing.TB, generation lifecycle.Generation, module []byte, end time.Time) lifecycle.Candidate {
	st := hosttest.Statement(generation, module, abi.Select)
	st.NotAfter = end.Unix()
	c := candidate(t, generation, lifecycle.ToActive, module)
	c.Signature = signed(t, st, 0)
	return c
}

// TestExpired checks that a stable module keeps running after its statement expires,
// also on restarted and new hosts, with a warning; that a module on trial is rejected;
// and that no new trial begins.
func TestExpired(t *testing.T) {
	now := new(clock)
	now.set(time.Unix(1_800_000_000, 0))
	end := now.now().Add(10 * 24 * time.Hour)
	c := config(t)
	c.Now, c.File = now.now, filepath.Join(t.TempDir(), "slots.json")
	runs := ending(t, 10, other(1), end)
	runs = stableOf(runs)
	s, stop := running(t, c)
	apply(t, s, want(runs))
	waitFor(t, "active", func() bool { return phase(s, 10) == "active" })
	if l := statusOf(s, abi.Select, 10); l.Reason != "" || l.NotAfterUnixMillis != end.UnixMilli() {
		t.Errorf("%+v", l)
	}

	now.add(3*24*time.Hour + time.Second)
	if l := statusOf(s, abi.Select, 10); !strings.Contains(l.Reason, "expires at 2027-01-25T08:00:00Z: sign it anew") {
		t.Errorf("%+v", l)
	}
	// The next one expires while it is on trial.
	next := ending(t, 20, other(2), end)
	apply(t, s, want(runs, next))
	waitFor(t, "it is in shadow", func() bool { return phase(s, 20) == "shadow" })
	now.set(end.Add(time.Second))
	waitFor(t, "it is rejected", func() bool { return phase(s, 20) == "rejected" })
	if l := statusOf(s, abi.Select, 20); l.Reason != "its statement expired before it was promoted" {
		t.Errorf("%+v", l)
	}
	if l := statusOf(s, abi.Select, 10); l.Phase != lifecycle.Active || !strings.Contains(l.Reason, "expired at 2027-01-25T08:00:00Z: a stable module runs on") {
		t.Errorf("%+v", l)
	}
	stop()

	// A restarted host and a new one run the stable module and no other expired one,
	// which is no reason to refuse the spec.
	for name, file := range map[string]string{"restarted": c.File, "new": filepath.Join(t.TempDir(), "slots.json")} {
		c.File = file
		s, stop := running(t, c)
		w := want(runs, ending(t, 30, other(3), end))
		if err := s.Check(w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := s.Apply(w); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		waitFor(t, name+": active", func() bool { return phase(s, 10) == "active" })
		waitFor(t, name+": rejected", func() bool { return phase(s, 30) == "rejected" })
		if l := statusOf(s, abi.Select, 30); !strings.Contains(l.Reason, "expired") {
			t.Errorf("%s: %+v", name, l)
		}
		stop()
	}
}
