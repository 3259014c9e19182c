package inprocess

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// TestLastReplica kills the only replica of a stage, front end and engine, while no control plane
// runs to detect it. The next longer stage serves.
func TestLastReplica(t *testing.T) {
	planes(t, onBoth, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 4})
		p := r.plan(stages([]policies.Tokens{100, 1000}, ids(0), ids(1), ids(2, 3))...)
		before := r.counts()
		testkit.NoError(t, r.sendShort())
		if who := r.countsSince(before); who["r0"] != 1 {
			t.Fatalf("before: a short request went to %v", who)
		}
		// Envoy may still wait for the end of that answer's stream, and then closes the client's connection
		// a second after the kill, with the next request unread: see "Why retries" in RATIONALE.md.
		r.HTTP.CloseIdleConnections()
		r.stopControl()
		r.killFront("r0")
		r.killEngine("r0")
		before = r.counts()
		const n = 60
		for i := range n {
			if err := r.sendShort(); err != nil {
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
		r.WaitFor("r0 serves again", func() bool {
			before := r.counts()
			testkit.NoError(t, r.sendShort())
			return r.countsSince(before)["r0"] == 1
		})
		// However long the control plane was stopped, its front ends soon reconnect, and the plan
		// is the same.
		r.startControl()
		r.waitForPlan("every replica is heard, under the same plan", p.Epoch, allHealthy)
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

// TestControlRestart stops the control plane and starts it again from its stored state. Requests
// continue, and the plan stays the same.
func TestControlRestart(t *testing.T) {
	planes(t, onEnvoy, func(t *testing.T, envoy string) {
		dir := t.TempDir()
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 4, control: keepReplicas, edit: func(f *config.Fleet) { f.State = dir }})
		// Each stage has two replicas: one that counts as away for a moment, on a busy host, is no reason to plan anew.
		p := r.plan(stages([]policies.Tokens{1000}, ids(0, 1), ids(2, 3))...)
		var streams []*harness.Stream
		for n := range 4 {
			streams = append(streams, r.Stream(prompt(120+n, forever)))
		}
		load := r.newLoad(4, 3, 100, 2000, 10_000)
		r.expect(p)
		load.WaitForRequests(20)
		for range 2 {
			r.stopControl()
			load.WaitForRequests(50)
			r.startControl()
			s := r.waitForPlan("the data plane is back", p.Epoch, func(control.Status) bool { return true })
			if m := s.Models[0]; m.Epoch != p.Epoch || len(m.Stages) != 2 || m.Stages[1].Low != 1000 || len(m.Stages[0].Replicas) != 2 {
				t.Errorf("after the restart:\n%s", summarize(s))
			}
			load.WaitForRequests(50)
		}
		// The restarted control plane plans again.
		p = policies.Plan{Model: llm, Stages: stages([]policies.Tokens{500}, ids(0, 1), ids(2, 3))}
		r.plan(p.Stages...)
		load.WaitForRequests(20)
		load.Stop()
		load.Report()
		r.WaitForGrowth(streams)
		r.RequireTexts(streams)
	})
}
