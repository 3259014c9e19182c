package inprocess

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// withSeed adds an option to a body that only the engine that began the request can continue.
func withSeed(body []byte) []byte {
	return bytes.Replace(body, []byte(`"ignore_eos"`), []byte(`"seed":7,"temperature":0.5,"ignore_eos"`), 1)
}

// startResidents starts long streams until an engine runs at least movable streams that may migrate, and
// one that is pinned. It returns the movable ones of that engine, its pinned ones, and all others.
func (r *fleetHarness) startResidents(id string, movable int) (movables, pinned, others []*harness.Stream) {
	r.T.Helper()
	for n := 0; len(movables) < movable || len(pinned) == 0; n++ {
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
		pin := len(movables) >= movable || n%2 == 1 // proxies may take the three replicas in turn
		if pin {
			body = withSeed(body)
		}
		before := here()
		s := r.Stream(body)
		to := &others
		for leg, why := range here() {
			// Another stream may have migrated to this engine meanwhile.
			if _, old := before[leg]; !old && pin == (why != policies.NotPinned) {
				if to = &movables; pin {
					to = &pinned
				}
			}
		}
		*to = append(*to, s)
	}
	return movables, pinned, others
}

// requireRecovery waits until a replica whose engine was away serves new requests again, and checks that no
// request of the load failed and that every stream has continued with the right text, wherever it runs now.
func (r *fleetHarness) requireRecovery(id string, load *harness.Load, streams ...[]*harness.Stream) {
	r.T.Helper()
	before := r.counts()[id]
	r.WaitFor(id+" serves again", func() bool { return r.counts()[id] > before })
	all := slices.Concat(streams...)
	r.WaitForGrowth(all)
	load.WaitForRequests(6)
	load.Stop()
	load.Report()
	r.RequireTexts(all)
	r.tally()
}

// TestEngineKilled kills an engine under load, without a drain. Requests that may migrate continue on
// other engines; pinned ones end with the error event. The replica receives no requests until its engine is back.
func TestEngineKilled(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		r := newStayingFleet(t, envoy, 3)
		r.teachShapes()
		load := r.newLoad(3, 60, 200, 2000)
		own, fixed, others := r.startResidents("r0", 3)
		r.waitForStatus("those that run at r0, and those that cannot move, are reported", func(s control.Status) bool {
			n := harness.Find(s, "r0")
			return n.Residents >= len(own)+len(fixed) && n.Pinned >= len(fixed) && n.Streams > 0
		})
		load.WaitForRequests(6)
		r.killEngine("r0")
		r.WaitForGrowth(own)
		for _, s := range fixed {
			s.Wait()
			if s.Done || !strings.Contains(s.Failed, "engine") || s.Err != nil {
				t.Errorf("a pinned stream of the dead engine: done %v, error event %q, %v", s.Done, s.Failed, s.Err)
			}
		}
		// The engine is out of rotation as soon as its front end detects the failure. The front end rejects requests that
		// are already on their way to it, and other replicas serve them.
		r.WaitFor("the front end detects it", func() bool { return !r.fronts["r0"].Status().EngineReady })
		load.WaitForAll()
		before := r.counts()
		load.WaitForRequests(12)
		if who := r.countsSince(before); who["r0"] > 0 || len(who) == 0 {
			t.Errorf("the next requests went to %v, want none at r0", who)
		}
		r.waitForStatus("r0 is reported as unhealthy", func(s control.Status) bool { return harness.Find(s, "r0").Health == "unhealthy" })
		r.startEngine("r0")
		r.requireRecovery("r0", load, own, others)
		r.waitForStatus("r0 is reported as healthy", func(s control.Status) bool { return harness.Find(s, "r0").Health == "healthy" })
	})
}

// TestEngineHangs makes the core of an engine hang for a while, whose health check still passes. Requests that may
// migrate, running or without a token, continue on other engines; pinned ones wait. Meanwhile the replica gets no new
// requests. It serves again when the engine does.
func TestEngineHangs(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		r := newCheckedFleet(t, harnessConfig{envoy: envoy, replicas: 3, edit: func(f *config.Fleet) {
			f.Migration, f.Speed = config.Migration{}, 4
		}, front: func(id string, c *frontend.Config) {
			if c.Placer = (staysHere{c.Placer}); id == "r0" {
				c.MinPause = 4 * time.Second // a busy host must not pause an engine for so long before the test does
			}
		}})
		r.teachShapes()
		load := r.newLoad(3, 60, 200, 2000)
		own, fixed, others := r.startResidents("r0", 3)
		load.WaitForRequests(6)
		resume := r.hangCore("r0")
		r.waitForStatus("r0 is reported as unhealthy", func(s control.Status) bool { return harness.Find(s, "r0").Health == "unhealthy" })
		r.WaitForGrowth(own) // elsewhere
		before := r.counts()
		load.WaitForRequests(12)
		if who := r.countsSince(before); who["r0"] > 0 {
			t.Errorf("the next requests went to %v, want none at r0", who)
		}
		resume()
		r.requireRecovery("r0", load, own, fixed, others)
	})
}

// hangCore stops the core of an emulated engine until the returned function is called.
func (r *fleetHarness) hangCore(id string) (resume func()) {
	r.T.Helper()
	fault := func(what string) {
		resp, err := http.Post(r.replica(id).Engine+"/emulator/"+what, "", nil)
		testkit.NoError(r.T, err)
		resp.Body.Close()
	}
	fault("hang")
	return func() { fault("resume") }
}
