package inprocess

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/control"
)

// skewedTrace returns a trace of many short requests and a few long ones, in real time.
func skewedTrace(rate float64, length time.Duration) (out []trace.Request) {
	rng := rand.New(rand.NewPCG(1, 2))
	for at := 0.0; at < length.Seconds(); at += rng.ExpFloat64() / rate {
		q := trace.Request{At: time.Duration(at * float64(time.Second)), Input: policies.Tokens(50 + rng.IntN(300)), Output: policies.Tokens(10 + rng.IntN(30))}
		if rng.IntN(20) == 0 {
			q.Input, q.Output = policies.Tokens(12_000+rng.IntN(8000)), 60
		}
		out = append(out, q)
	}
	return out
}

// TestPlacement checks that under a mix of many short and a few long requests the fleet replaces
// its single stage by itself, no request fails, and its status shows the decisions.
func TestPlacement(t *testing.T) {
	planes(t, onProxy, func(t *testing.T, envoy string) {
		r := newFleetHarness(t, harnessConfig{envoy: envoy, replicas: 6, edit: func(f *config.Fleet) {
			f.Models[0].Profile = "testdata/skewed.json"
			f.Planner = config.Planner{Adopt: config.AdoptGain, MinRequests: 100}
			f.Overload.Admission = config.AdmissionOff // engines are slower than their profile on a busy host
		}})
		run, err := replay.New(replay.Config{
			Target: r.URL(), Model: llm, Requests: skewedTrace(6, 60*time.Second), Speed: r.cfg.Fleet.Speed,
		})
		testkit.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		got, err := run.Run(ctx)
		testkit.NoError(t, err)
		if got.Failed() > 0 || got.Completed != got.Requests || got.Truncated > 0 {
			t.Errorf("%d of %d requests failed, %d are short: %v", got.Failed(), got.Requests, got.Truncated, got.Failures)
		}
		r.waitForStatus("all requests are counted", func(s control.Status) bool { return s.Models[0].Seen >= uint64(got.Requests) })
		s := r.status()
		m := s.Models[0]
		// If engines are slower than their profile because the host is busy, the plan is rolled
		// back: its iterations are slower than planned.
		if !slices.ContainsFunc(s.History, func(c control.Change) bool { return len(c.Stages) > 1 }) {
			t.Fatalf("it never left its stage; the plan has %d:\n%s%v", len(m.Stages), summarize(s), s.History)
		}
		if m.EstimateError <= 0 || m.EstimateError > 0.5 || m.LearntBytesPerToken <= 1 {
			t.Errorf("the status reports an estimate error of %v, %v bytes a token", m.EstimateError, m.LearntBytesPerToken)
		}
		hits := fleetview.CountStageHits(got.Records, s.History)
		in, near := hits.InRange, hits.InRange+hits.Next // estimates near a boundary may select a neighbour
		known := near + hits.Other
		if known < got.Requests/2 || 2*in < known || near*20 < known*19 {
			t.Errorf("of %d requests, %d were served by the stage of their exact length, %d by that one or its neighbour", known, in, near)
		}
		t.Logf("%d requests, %d failed; %d of %d in the stage of their exact length, %d there or next to it; %d stages at epoch %d: %s; estimate off by %.1f %% at %.2f bytes a token",
			got.Requests, got.Failed(), in, known, near, len(m.Stages), m.Epoch, m.Reason, 100*m.EstimateError, m.BytesPerToken)
	})
}

// status fetches the status from the admin server.
func (r *fleetHarness) status() (s control.Status) {
	r.T.Helper()
	resp, err := r.HTTP.Get(r.AdminURL() + "/status")
	testkit.NoError(r.T, err)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil || resp.StatusCode != http.StatusOK {
		r.T.Fatalf("/status: %s, %v", resp.Status, err)
	}
	return s
}
