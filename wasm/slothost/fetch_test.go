package slothost

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
)

// shop serves modules to fetches.
type shop struct {
	takes time.Duration // for each fetch
	mu    sync.Mutex
	there map[lifecycle.Digest][]byte
	asked map[lifecycle.Digest]int
}

func newShop() *shop {
	return &shop{there: map[lifecycle.Digest][]byte{}, asked: map[lifecycle.Digest]int{}}
}

func (s *shop) put(module []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.there[lifecycle.Sum(module)] = module
}

func (s *shop) fetch(_ context.Context, d lifecycle.Digest) ([]byte, error) {
	time.Sleep(s.takes)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[d]++
	if b, ok := s.there[d]; ok {
		return b, nil
	}
	return nil, errors.New("not here")
}

// times returns how often a module was requested.
func (s *shop) times(module []byte) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[lifecycle.Sum(module)]
}

// fetching runs a test in a synctest bubble, with Slots that fetch modules.
func fetching(t *testing.T, kinds []abi.Kind, test func(t *testing.T, s *Slots, from *shop)) {
	synctest.Test(t, func(t *testing.T) {
		from := newShop()
		c := config(t)
		c.Kinds, c.Fetch, c.Tick, c.Logger = kinds, from.fetch, time.Hour, nil
		s, _ := running(t, c)
		test(t, s, from)
	})
}

// bare returns a candidate without its module's bytes.
func bare(c lifecycle.Candidate) lifecycle.Candidate {
	c.Module = nil
	return c
}

// TestFetches checks that a module that two slots want is fetched once, and that an
// unavailable module is loaded once it becomes available.
func TestFetches(t *testing.T) {
	fetching(t, []abi.Kind{abi.Quote, abi.Select}, func(t *testing.T, s *Slots, from *shop) {
		a, b := other(1), other(2)
		from.put(a)
		from.takes = time.Second // so that both slots want it meanwhile
		apply(t, s, specOf(abi.Quote, bare(stableOf(signedFor(t, 5, lifecycle.ToActive, a, abi.Quote, abi.Select)))))
		apply(t, s, want(bare(stableOf(signedFor(t, 5, lifecycle.ToActive, a, abi.Quote, abi.Select)))))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		from.takes = 0
		if got := statusOf(s, abi.Quote, 5); phase(s, 5) != "active" || got.Phase != lifecycle.Rejected || from.times(a) != 1 {
			t.Errorf("5 is %s, and %s as a quoter; asked %d times", phase(s, 5), got.Phase, from.times(a))
		}
		apply(t, s, want(bare(stable(t, 6, b))))
		time.Sleep(time.Hour)
		if asked := from.times(b); asked < 240 || asked > 250 {
			t.Errorf("asked %d times in an hour", asked)
		}
		from.put(b)
		time.Sleep(maxBackoff)
		synctest.Wait()
		if got := phase(s, 6); got != "active" {
			t.Errorf("6 is %s", got)
		}
		before := from.times(a) + from.times(b)
		time.Sleep(time.Hour)
		if from.times(a)+from.times(b) != before {
			t.Error("asked for what is there")
		}
	})
}

// TestWithdrawnWhileFetching checks that a spec without the module being fetched takes
// effect at once and ends the fetch. Until then, the status shows the fetch and its
// last error.
func TestWithdrawnWhileFetching(t *testing.T) {
	fetching(t, []abi.Kind{abi.Select}, func(t *testing.T, s *Slots, from *shop) {
		a, b := stable(t, 5, other(1)), candidate(t, 6, lifecycle.ToCanary, other(2))
		apply(t, s, want(a, bare(b)))
		time.Sleep(time.Minute)
		if got := statusOf(s, abi.Select, 6); phase(s, 5) != "active" || got.Phase != lifecycle.Fetching || got.Reason != "not here" || got.Goal != lifecycle.ToCanary {
			t.Errorf("5 is %s, %+v", phase(s, 5), got)
		}
		apply(t, s, want(a))
		synctest.Wait()
		if got := statusOf(s, abi.Select, 6); got.Phase != 0 {
			t.Errorf("%+v", got)
		}
		asked := from.times(b.Module)
		time.Sleep(time.Hour)
		if now := from.times(b.Module); now != asked {
			t.Errorf("still asked for: %d times, then %d", asked, now)
		}
	})
}

// TestForged checks that bytes with another digest, or too many, are not used.
func TestForged(t *testing.T) {
	for want, forged := range map[string][]byte{"do not have the digest": other(2), "at most": make([]byte, maxModule+1)} {
		fetching(t, []abi.Kind{abi.Select}, func(t *testing.T, s *Slots, from *shop) {
			good := stable(t, 5, other(1))
			from.there[lifecycle.Sum(good.Module)] = forged
			apply(t, s, specOf(abi.Select, bare(good)))
			time.Sleep(time.Minute)
			if got := statusOf(s, abi.Select, 5); got.Phase != lifecycle.Fetching || !strings.Contains(got.Reason, want) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestFullDisk checks that nothing is admitted that could not be written, that the status
// shows the error until a later attempt succeeds, and that a rollback does not wait for that.
func TestFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(testkit.Log)
		c := config(t)
		dir := filepath.Join(t.TempDir(), "none", "none")
		c.File, c.Tick, c.Logger = filepath.Join(dir, "slots.json"), time.Hour, log.Logger()
		s, _ := running(t, c)
		after := func(d time.Duration, active lifecycle.Generation, refused bool) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if st := s.Status()[0]; st.Active != active || (st.Refused != "") != refused {
				t.Errorf("%+v", st)
			}
		}
		testkit.NoError(t, s.Apply(want(stable(t, 20, other(1)))))
		after(time.Minute, lifecycle.Native, true)
		if n := log.Count("saving the admitted policy modules failed"); n != 1 {
			t.Errorf("the failure is logged %d times:\n%s", n, log)
		}
		testkit.NoError(t, s.Apply(want(stable(t, 5, other(1))))) // 20 was not admitted
		testkit.NoError(t, os.MkdirAll(dir, 0o700))
		after(retryAfter, 5, false)
		testkit.NoError(t, os.RemoveAll(filepath.Dir(dir)))
		testkit.NoError(t, s.Apply(without(want(), 5)))
		after(0, lifecycle.Native, true)
	})
}

// TestRefusalIsReported checks that Status reports why the newest spec is refused until one is
// accepted, and that what a refused spec rolls back is rolled back.
func TestRefusalIsReported(t *testing.T) {
	s, stop := running(t, config(t))
	apply(t, s, want(stable(t, 5, other(1))))
	waitFor(t, "it is active", func() bool { return s.Status()[0].Active == 5 })
	bad := without(want(stable(t, 4, other(2))), 5)
	err := s.Check(bad)
	testkit.WantError(t, err, "older")
	if st := s.Status()[0]; st.Refused != err.Error() || st.Active != 0 || phase(s, 5) != "rolledBack" {
		t.Errorf("%+v", st)
	}
	s.Refuse(slotKind(abi.Select), errors.New("not a spec"))
	if st := s.Status()[0]; st.Refused != "not a spec" {
		t.Errorf("%+v", st)
	}
	if err := s.Check(want()); err != nil || s.Status()[0].Refused != "" {
		t.Errorf("%v: %+v", err, s.Status()[0])
	}
	stop()
}
