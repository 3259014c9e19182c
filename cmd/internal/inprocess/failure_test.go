package inprocess

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestLastReplica kills the only replica of a stage, front end and engine, while no control plane
// runs to detect it. The next longer stage serves.
func TestLastReplica(t *testing.T) {
	idlePlanes(t, onBoth, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 4})
		p := r.plan(stages([]policies.Tokens{100, 1000}, ids(0), ids(1), ids(2, 3))...)
		before := r.counts()
		if err := r.sendShort(); err != nil {
			t.Fatal(err)
		}
		if who := r.countsSince(before); who["r0"] != 1 {
			t.Fatalf("before: a short request went to %v", who)
		}
		r.stopControl()
		r.killFront("r0")
		r.killEngine("r0")
		before = r.counts()
		const n = 200
		for i := range n {
			// A proxy that has not detected the closed connection sends the first request to the
			// killed replica, and that request fails.
			if err := r.sendShort(); err != nil && (i > 0 || !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "without an answer")) {
				t.Errorf("request %d after: %v", i, err)
			}
		}
		if who := r.countsSince(before); who["r1"] < n-1 || len(who) != 1 {
			t.Errorf("%d short requests went to %v, want all at r1, of the next longer stage", n, who)
		}
		t.Logf("%d requests without their stage and without a control plane", n)

		// The replica restarts, still without a control plane.
		r.startEngine("r0")
		r.startFront("r0")
		r.waitFor("r0 serves again", func() bool {
			before := r.counts()
			if err := r.sendShort(); err != nil {
				t.Fatal(err)
			}
			return r.countsSince(before)["r0"] == 1
		})
		// However long the control plane was stopped, its front ends soon reconnect, and the plan
		// is the same.
		r.startControl()
		r.waitForStatus("every replica is heard, under the same plan", func(s control.Status) bool {
			if s.Epoch > p.Epoch {
				t.Fatal("the fleet was planned anew:", summarize(s))
			}
			return inUse(s, p.Epoch) && allHealthy(s)
		})
	})
}

// sendShort sends one short request.
func (r *fleetHarness) sendShort() error {
	got, err := r.send("/v1/completions", "", bytes.NewReader(prompt(100, 1)))
	if err == nil && (got.status != http.StatusOK || got.stage != "s0") {
		err = fmt.Errorf("status %d, stage %q: %.300s", got.status, got.stage, got.body)
	}
	return err
}

// startStreamsOnTwo starts long streams until two replicas of the first stage have some, and groups them by
// replica.
func (r *fleetHarness) startStreamsOnTwo(n int) map[string][]*live {
	r.t.Helper()
	out := make(map[string][]*live)
	for len(out["r0"]) < n || len(out["r1"]) < n {
		before := r.counts()
		s := r.stream(prompt(120, 100_000))
		for id := range r.countsSince(before) {
			out[id] = append(out[id], s)
		}
	}
	return out
}

// TestEngineKilled kills an engine in the middle of its streams.
func TestEngineKilled(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 3})
		r.plan(stages([]policies.Tokens{1000}, ids(0, 1), ids(2))...)
		streams := r.startStreamsOnTwo(2)
		load := newTraffic(r, 4, 3, 100, 2000, 10_000)
		load.waitForRequests(20)
		load.killDuring(func() { r.killEngine("r0") }, func(err error) bool { return strings.Contains(err.Error(), "answer was cut") })
		for _, s := range streams["r0"] {
			s.wait(t)
			if s.done || !strings.Contains(s.failed, "engine") || s.err != nil {
				t.Errorf("a stream of the dead engine: done %v, error event %q, %v", s.done, s.failed, s.err)
			}
		}
		// The engine is out of rotation as soon as its front end detects the failure. The front end
		// rejects requests that are already on their way to it, and other replicas serve them.
		r.waitFor("the front knows", func() bool { return !r.fronts["r0"].Status().EngineReady })
		load.waitForAll()
		before := r.counts()
		load.waitForRequests(100)
		if who := r.countsSince(before); who["r0"] > 0 || who["r1"] == 0 {
			t.Errorf("the next requests went to %v, want none at r0", who)
		}
		r.waitForStatus("r0 is reported as unhealthy", func(s control.Status) bool { return healthOf(s, "r0") == "unhealthy" })
		r.startEngine("r0")
		r.waitFor("r0 serves again", func() bool { return r.placed["r0"].Load() > before["r0"] })
		r.waitForStatus("r0 is reported as healthy", func(s control.Status) bool { return healthOf(s, "r0") == "healthy" })
		load.waitForRequests(50)
		load.stop()
		load.report()
		r.requireProgress(streams["r1"])
	})
}

// TestFrontKilled kills a front end in the middle of its streams.
func TestFrontKilled(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 3})
		r.plan(stages([]policies.Tokens{1000}, ids(0, 1), ids(2))...)
		streams := r.startStreamsOnTwo(2)
		load := newTraffic(r, 4, 3, 100, 2000, 10_000)
		load.waitForRequests(20)
		load.killDuring(func() { r.killFront("r0") }, func(error) bool { return true })
		before := r.counts()
		for _, s := range streams["r0"] {
			s.wait(t)
			if s.done {
				t.Error("a stream of the dead front ended as if it were whole")
			}
		}
		load.waitForRequests(100)
		if who := r.countsSince(before); who["r1"] == 0 {
			t.Errorf("the next requests went to %v", who)
		}
		r.startFront("r0")
		r.waitFor("r0 serves again", func() bool { return r.placed["r0"].Load() > before["r0"] })
		r.waitForStatus("r0 is reported as healthy", func(s control.Status) bool { return healthOf(s, "r0") == "healthy" })
		load.waitForRequests(50)
		load.stop()
		load.report()
		r.requireProgress(streams["r1"])
	})
}

// healthOf returns the health of a replica in a status.
func healthOf(s control.Status, id policies.ReplicaID) string {
	for _, m := range s.Models {
		for _, st := range m.Stages {
			for _, n := range st.Replicas {
				if n.ID == id {
					return n.Health
				}
			}
		}
	}
	return ""
}

// requireProgress checks that streams still receive tokens, and ends them.
func (r *fleetHarness) requireProgress(streams []*live) {
	r.t.Helper()
	for _, s := range streams {
		now := s.count.Load()
		r.waitFor("a stream that goes on", func() bool { return s.count.Load() > now })
	}
	for _, s := range streams {
		s.cancel()
		s.wait(r.t)
		if s.failed != "" {
			r.t.Errorf("a stream that nothing happened to has the error %s", s.failed)
		}
	}
}

// TestControlRestart stops the control plane and starts it again from its stored state. Requests
// continue, and the plan stays the same.
func TestControlRestart(t *testing.T) {
	idlePlanes(t, onEnvoy, func(t *testing.T, envoy string) {
		dir := t.TempDir()
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 3, edit: func(f *config.Fleet) { f.State = dir }})
		p := r.plan(stages([]policies.Tokens{1000}, ids(0, 1), ids(2))...)
		streams := r.startStreamsOnTwo(1)
		load := newTraffic(r, 4, 3, 100, 2000, 10_000)
		load.expect(p)
		load.waitForRequests(20)
		for range 2 {
			r.stopControl()
			load.waitForRequests(50)
			r.startControl()
			s := r.waitForStatus("the data plane is back", func(s control.Status) bool { return inUse(s, p.Epoch) })
			if m := s.Models[0]; m.Epoch != p.Epoch || len(m.Stages) != 2 || m.Stages[1].Low != 1000 || len(m.Stages[0].Replicas) != 2 {
				t.Errorf("after the restart:\n%s", summarize(s))
			}
			load.waitForRequests(50)
		}
		// The restarted control plane plans again.
		p = policies.Plan{Model: llm, Stages: stages([]policies.Tokens{500}, ids(0), ids(1, 2))}
		r.plan(p.Stages...)
		load.waitForRequests(20)
		load.stop()
		load.report()
		for _, s := range streams {
			r.requireProgress(s)
		}
	})
}
