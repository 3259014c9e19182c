package frontend

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestGivenUpStreams pauses streams of an engine that has room for them and goes on with another one.
// Each is given up after HangTimeout, for a reason that the log names. Two may have been unlucky; with
// the third the engine counts as hung.
func TestGivenUpStreams(t *testing.T) {
	for paused, hangs := range map[int]uint64{2: 0, 3: 1} {
		synctest.Test(t, func(t *testing.T) {
			var log testkit.Log
			f, _ := newRescueFleet(t, 2, func(c *Config) { c.KVTokens, c.Logger = 1<<20, log.Logger() })
			want := "200  " + f.directAnswer("/v1/completions", longRequest)
			f.setPace(2 * time.Millisecond)
			var streams []chan string
			for range paused {
				streams = append(streams, f.start(longRequest))
			}
			waitFor(t, func() bool {
				legs := f.servers[0].LocalLegs()
				return len(legs) == paused && !slices.ContainsFunc(legs, func(l LocalLeg) bool { return l.Request.Output < 4 })
			})
			for _, leg := range f.servers[0].LocalLegs() {
				f.engines[0].freeze(leg.Name)
			}
			f.engines[0].set(func(int, *http.Request) { time.Sleep(100 * time.Millisecond) }, nil)
			other := f.start(strings.Replace(longRequest, "70", "700", 1))
			for _, stream := range streams {
				if got := <-stream; withoutCached(got) != withoutCached(want) {
					t.Errorf("got %s\nwant %s", got, want)
				}
			}
			<-other
			if n := f.servers[0].Status().EngineHangs; n != hangs {
				t.Errorf("%d streams paused: the engine was found hung %d times", paused, n)
			}
			if n := strings.Count(log.String(), "although it has room"); n != paused {
				t.Errorf("%d of %d pauses are named:\n%s", n, paused, &log)
			}
			f.requireIdle()
		})
	}
}

// TestFirstTokenIsNoPause checks that HangTimeout applies to the middle of an answer only: a stream may
// wait for its first token while its engine goes on with others.
func TestFirstTokenIsNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newRescueFleet(t, 2, func(c *Config) { c.KVTokens = 1 << 20 })
		f.engines[0].set(func(int, *http.Request) { time.Sleep(100 * time.Millisecond) }, nil)
		other := f.start(strings.Replace(longRequest, "70", "700", 1))
		f.waitForLegs(1)
		f.engines[0].set(func(n int, _ *http.Request) {
			if n == 0 {
				time.Sleep(2 * defaultHangTimeout)
			}
		}, nil)
		if got := <-f.start(longRequest); !strings.HasPrefix(got, "200 ") || f.engines[1].calls.Load() != 0 {
			t.Errorf("the other engine has %d requests: %.200s", f.engines[1].calls.Load(), got)
		}
		<-other
	})
}
