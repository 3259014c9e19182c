package inprocess

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
)

// withSeed adds an option to a body that only the engine that began the request can continue.
func withSeed(body []byte) []byte {
	return bytes.Replace(body, []byte(`"ignore_eos"`), []byte(`"seed":7,"temperature":0.5,"ignore_eos"`), 1)
}

// forever is the output of streams that last until their test ends.
const forever = 100_000

// startResidents starts long streams until an engine runs at least movable streams that may migrate, and
// one that is pinned. It returns the movable ones of that engine, its pinned ones, and all others.
func (r *fleetHarness) startResidents(id string, movable int) (moving, fixed, others []*live) {
	r.t.Helper()
	for n := 0; len(moving) < movable || len(fixed) == 0; n++ {
		here := func() map[string]policies.PinReason {
			out := make(map[string]policies.PinReason)
			for _, q := range r.fronts[id].LocalLegs() {
				if q.Request.MaxOutput == forever {
					out[q.Name] = q.Pinned
				}
			}
			return out
		}
		body := prompt(120+n, forever)
		ties := len(moving) >= movable || n%3 == 2
		if ties {
			body = withSeed(body)
		}
		before := here()
		s := r.stream(body)
		at := "elsewhere"
		for leg, why := range here() {
			// Another stream may have migrated to this engine meanwhile.
			if _, old := before[leg]; !old && ties == (why != policies.NotPinned) {
				if at = "moving"; ties {
					at = "fixed"
				}
			}
		}
		switch at {
		case "moving":
			moving = append(moving, s)
		case "fixed":
			fixed = append(fixed, s)
		default:
			others = append(others, s)
		}
	}
	return moving, fixed, others
}

// requireTexts ends streams and checks that their text is the one that the model generates.
func (f *traffic) requireTexts(streams []*live) {
	t := f.r.t
	t.Helper()
	for _, s := range streams {
		s.cancel()
		s.wait(t)
		want, err := f.oracle.text(bytes.Replace(s.body, []byte(`"max_tokens":100000`), []byte(`"max_tokens":2500`), 1))
		if err != nil {
			t.Fatal(err)
		}
		got := strings.TrimRight(s.text.String(), "\ufffd")
		if n := min(len(got), len(want)); s.failed != "" || n == 0 || got[:n] != want[:n] {
			t.Errorf("a stream has the error %q, or not what the model says, after %d events", s.failed, s.tokens)
		}
	}
}

// waitForGrowth waits until streams have received more tokens.
func (r *fleetHarness) waitForGrowth(streams []*live) {
	r.t.Helper()
	for _, s := range streams {
		now := s.count.Load()
		r.waitFor("a stream that goes on", func() bool {
			select {
			case <-s.ended:
				r.t.Fatalf("a stream ended after %d events: %q, %v", s.count.Load(), s.failed, s.err)
			default:
			}
			return s.count.Load() > now+3
		})
	}
}

// TestEngineDies kills an engine under load, without a drain. Requests that may migrate continue on
// other engines; pinned ones end with the error event.
func TestEngineDies(t *testing.T) {
	idlePlanes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newMigratingFleet(t, envoy, config.MigrationLive, 3)
		r.teachShapes()
		load := newTraffic(r, 6, 100, 200, 2000)
		own, fixed, others := r.startResidents("r0", 3)
		load.waitForRequests(6)
		r.killEngine("r0")
		r.waitForGrowth(own)
		for _, s := range fixed {
			s.wait(t)
			if s.done || !strings.Contains(s.failed, "engine") {
				t.Errorf("a pinned stream of the dead engine: done %v, error event %q, %v", s.done, s.failed, s.err)
			}
		}
		load.waitForRequests(12)
		r.startEngine("r0")
		before := r.counts()["r0"]
		r.waitFor("r0 serves again", func() bool { return r.counts()["r0"] > before })
		load.waitForRequests(6)
		load.stop()
		load.report()
		r.waitForGrowth(own)
		r.waitForGrowth(others)
		load.requireTexts(own)
		load.requireTexts(others)
		r.tally()
	})
}

// TestEngineHangs makes an engine stop answering for a while. Requests that may migrate continue on
// other engines; pinned ones wait.
func TestEngineHangs(t *testing.T) {
	idlePlanes(t, onProxy, func(t *testing.T, envoy string) {
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{}, 4
		}, front: func(_ string, c *frontend.Config) {
			c.HealthTimeout, c.HangTimeout = time.Second, 2*time.Second
		}})
		r.teachShapes()
		load := newTraffic(r, 6, 100, 200, 2000)
		own, fixed, others := r.startResidents("r0", 3)
		load.waitForRequests(6)
		resume := r.hangEngine("r0")
		r.waitForGrowth(own)
		load.waitForRequests(12)
		resume()
		before := r.counts()["r0"]
		r.waitFor("r0 serves again", func() bool { return r.counts()["r0"] > before })
		r.waitForGrowth(fixed)
		load.waitForRequests(6)
		load.stop()
		load.report()
		r.waitForGrowth(own)
		r.waitForGrowth(others)
		load.requireTexts(own)
		load.requireTexts(fixed)
		load.requireTexts(others)
		r.tally()
	})
}
