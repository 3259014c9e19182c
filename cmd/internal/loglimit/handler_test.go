package loglimit

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// runLimited runs a test in virtual time with a limited logger, its Handler, and what it writes.
func runLimited(t *testing.T, test func(t *testing.T, log *slog.Logger, h *Handler, out *testkit.Log)) {
	synctest.Test(t, func(t *testing.T) {
		out := &testkit.Log{}
		h := New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelDebug}))
		defer h.Close()
		test(t, slog.New(h), h, out)
	})
}

// TestAttackLogFlood checks that lines with one message are one event, although their errors
// alternate and each names another port or stream.
func TestAttackLogFlood(t *testing.T) {
	runLimited(t, func(t *testing.T, log *slog.Logger, _ *Handler, out *testkit.Log) {
		replica := log.With("replica", "r0")
		for i := range 1000 {
			err := errors.New([]string{"dial 127.0.0.1: refused", "dial 127.0.0.1: reset"}[i%2])
			replica.Warn("peer unreachable", "peer", fmt.Sprint("10.0.0.9:", 1024+i), "error", err)
			replica.Warn("stream lost its engine", "stream", fmt.Sprint("r0/", i), "error", err)
		}
		for _, event := range []string{"peer unreachable", "stream lost its engine"} {
			if n := out.Count(event); n != PerSubject {
				t.Errorf("%q is logged %d times", event, n)
			}
		}
		time.Sleep(Interval)
		synctest.Wait()
		for _, event := range []string{"peer unreachable", "stream lost its engine"} {
			if want := fmt.Sprintf(`level=WARN msg="similar events not logged" event=%q count=995 within=1m0s`, event); out.Count(want) != 1 {
				t.Errorf("without %s:\n%s", want, out)
			}
		}
		replica.Warn("stream lost its engine", "stream", "r0/later")
		if out.Count("r0/later") != 1 {
			t.Error("the next minute has no line")
		}
	})
}

// TestSubjects checks that each replica has a limit of its own, and that all of them together do
// not exceed the limit of the event.
func TestSubjects(t *testing.T) {
	runLimited(t, func(t *testing.T, log *slog.Logger, h *Handler, out *testkit.Log) {
		for range 100 {
			log.Warn("replica died", "replica", "r1")
		}
		log.Warn("replica died", "replica", "r2")
		if out.Count("replica=r1") != PerSubject || out.Count("replica=r2") != 1 {
			t.Errorf("the lines about r1 hide that about r2:\n%s", out)
		}
		for i := range 1000 {
			log.Warn("replica died", "replica", fmt.Sprint("invented", i))
		}
		if n := out.Count("replica died"); n != PerEvent {
			t.Errorf("%d lines", n)
		}
		h.Close()
		if want := fmt.Sprint("count=", 1101-PerEvent); out.Count(want) != 1 {
			t.Errorf("without %s at the end: %s", want, out)
		}
	})
}

// TestLevels checks that lines of information have a higher limit, and lines for debugging none.
func TestLevels(t *testing.T) {
	runLimited(t, func(t *testing.T, log *slog.Logger, _ *Handler, out *testkit.Log) {
		for range 2 * PerInfo {
			log.Info("migration ended")
			log.Debug("frame read")
		}
		if info, debug := out.Count("migration ended"), out.Count("frame read"); info != PerInfo || debug != 2*PerInfo {
			t.Errorf("%d lines of information, %d for debugging", info, debug)
		}
	})
}

// remembered returns how many events a Handler remembers.
func remembered(h *Handler) int {
	h.state.mu.Lock()
	defer h.state.mu.Unlock()
	return len(h.state.events)
}

// TestBounded checks that messages which are not constant, as they should be, fill neither the log
// nor the memory.
func TestBounded(t *testing.T) {
	runLimited(t, func(t *testing.T, log *slog.Logger, h *Handler, out *testkit.Log) {
		for i := range 10 * maxEvents {
			log.Error(fmt.Sprint("invented ", i))
		}
		if n := strings.Count(out.String(), "\n"); n > maxEvents+PerSubject {
			t.Errorf("%d lines", n)
		}
		if n := remembered(h); n > maxEvents+1 {
			t.Errorf("%d events are remembered", n)
		}
		time.Sleep(Interval)
		synctest.Wait()
		log.Error("later")
		if n := remembered(h); n > 2 || out.Count("msg=later") != 1 {
			t.Errorf("a minute later %d events are remembered", n)
		}
	})
}

// TestBoundedAgain checks that the events beyond maxEvents are reported in every Interval, not only
// in the first.
func TestBoundedAgain(t *testing.T) {
	runLimited(t, func(t *testing.T, log *slog.Logger, _ *Handler, out *testkit.Log) {
		for round := range 3 {
			for i := range 2 * maxEvents {
				log.Error(fmt.Sprint("invented ", round, " ", i))
			}
			time.Sleep(Interval)
			synctest.Wait()
			if n := out.Count(`event="other events"`); n != round+1 {
				t.Fatalf("round %d: %d reports", round, n)
			}
		}
	})
}

// TestAddSubject checks that the port of an address is left out of a subject, and that nothing is
// left out of an identity (spiffe://…) or a name, which have colons, too.
func TestAddSubject(t *testing.T) {
	for value, want := range map[string]string{
		"spiffe://fleet.test/proxy/a": "client=spiffe://fleet.test/proxy/a ", "[::1]:80": "client=::1 ", "r1": "client=r1 ", "host:port": "client=host:port ",
	} {
		if got := addSubject("", slog.String("client", value)); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
}
