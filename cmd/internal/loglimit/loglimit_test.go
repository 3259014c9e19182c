package loglimit

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies/testkit"
)

// TestAttackLogFlood logs an event as a client would drive it, with texts that it invents and from
// two components: a burst is logged, then one line a minute that counts. Other events, and lines
// for debugging, are logged meanwhile.
func TestAttackLogFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testkit.Log
		log := slog.New(Wrap(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		parts := []*slog.Logger{log.With("part", 1), log.WithGroup("g").With("part", 2)}
		const each = 10_000
		for i := range each {
			parts[i%2].Warn("request refused", "port", i)
			log.Debug("a detail")
			time.Sleep(time.Millisecond)
		}
		log.Info("another event")
		if n := out.Count("request refused"); n != Burst {
			t.Errorf("%d lines are logged, want %d", n, Burst)
		}
		if n := out.Count("a detail"); n != each || out.Count("another event") != 1 {
			t.Errorf("%d lines for debugging, want %d; %d of the other event", n, each, out.Count("another event"))
		}
		time.Sleep(Window)
		synctest.Wait()
		want := fmt.Sprintf(`level=WARN msg="log lines of an event suppressed" event="request refused" lines=%d within=1m0s`, each-Burst)
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no line %s", want)
		}
		// A new window: lines are logged again, and counted again.
		for range Burst + 2 {
			log.Warn("request refused")
		}
		if n := out.Count("request refused"); n != 2*Burst+1 {
			t.Errorf("%d lines after a window, want %d", n, 2*Burst+1)
		}
		time.Sleep(2 * Window)
		synctest.Wait()
		if out.Count("lines=2 ") != 1 {
			t.Error("the second window is not counted")
		}
	})
}

// TestInventedEvents logs more events than are counted one by one.
func TestInventedEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out testkit.Log
		log := slog.New(Wrap(slog.NewTextHandler(&out, nil)))
		for i := range 3 * maxEvents {
			log.Warn(fmt.Sprint("event ", i))
		}
		if n := out.Count("\n"); n != maxEvents+Burst {
			t.Errorf("%d lines, want %d", n, maxEvents+Burst)
		}
		time.Sleep(Window)
		synctest.Wait()
		if out.Count("other events") != 1 {
			t.Error("what was not logged is not counted")
		}
	})
}
