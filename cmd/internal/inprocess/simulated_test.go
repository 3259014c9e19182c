package inprocess

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// simulatedError is the most that a median of the simulator may be off.
const simulatedError = 0.15

// traceOf is a slice of requests as a trace.Source.
type traceOf []trace.Request

// Next implements trace.Source.
func (s *traceOf) Next() (trace.Request, error) {
	if len(*s) == 0 {
		return trace.Request{}, io.EOF
	}
	first := (*s)[0]
	*s = (*s)[1:]
	return first, nil
}

// TestSimulated replays a trace on Cascade's own fleet, with the proxy, the migrators, live migrations and
// engines that are emulated in real time, and simulates the same requests, plan and settings. It logs both
// and checks the medians, if the machine had CPU to spare: otherwise the fleet's times are the machine's.
func TestSimulated(t *testing.T) {
	testkit.SkipSlow(t)
	const (
		profile  = "rtxpro6000-llama-3.1-8b"
		replicas = 4
		cut      = policies.Tokens(700)
		seeds    = 3
		speed    = 1
	)
	for _, rate := range []float64{6, 15} {
		t.Run(fmt.Sprintf("%v per second", rate), func(t *testing.T) {
			g, _ := trace.Named("mixed")
			g.Requests, g.Rate = 300, rate
			for seed := range uint64(seeds) {
				g.Seed = seed + 1
				requests := testkit.Must(trace.Shape{MaxLength: 24_000}.Apply(testkit.Must(g.Generate())))

				r := newMigratingFleet(t, "", config.MigrationLive, replicas, func(f *config.Fleet) {
					f.Speed, f.Models[0].Profile = speed, profile
				})
				r.plan(stages([]policies.Tokens{cut}, ids(0, 1), ids(2, 3))...)
				real, err := testkit.Must(replay.New(replay.Config{Target: r.URL(), Model: llm, Requests: requests, Speed: speed})).Run(t.Context())
				testkit.NoError(t, err)
				done, failed := r.migrations()

				source := traceOf(requests)
				s := testkit.Must(sim.New(sim.Config{
					Replicas: replicas, Profile: testkit.Must(cost.Builtin(profile)), Policy: sim.Cascade, Admission: true, Seed: g.Seed, Source: &source,
					Stages: policies.Partition{Cuts: []policies.Tokens{cut}, Counts: []int{2, 2}},
				}))
				simulated, err := s.Run(t.Context())
				testkit.NoError(t, err)
				t.Logf("seed %d: %d requests, %d and simulated %d failed; %d migrated (%d not), simulated %d; %.0f %% of the CPU idle %s\n%s", g.Seed, len(requests),
					real.Failed(), simulated.Failed(), len(done), len(failed), simulated.Moves.Moved, 100*real.IdleCPU, real.Void, compareMedians(t, &real, &simulated.Result))
			}
		})
	}
}

// compareMedians returns a table of both results, and fails the test if a median is off, unless the run is
// void.
func compareMedians(t *testing.T, real, simulated *replay.Result) string {
	var table strings.Builder
	fmt.Fprintf(&table, "%-12s %22s %22s\n", "ms", "p50: fleet, simulated", "p95: fleet, simulated")
	a, b := &real.Engine.Latency, &simulated.Engine.Latency
	for _, m := range []struct {
		name string
		a, b replay.Summary
	}{{"TTFT", a.TTFT, b.TTFT}, {"TPOT", a.TPOT, b.TPOT}, {"normalised", a.Normalised, b.Normalised}, {"end to end", a.E2E, b.E2E}} {
		off := m.b.P50/m.a.P50 - 1
		fmt.Fprintf(&table, "%-12s %8.1f %8.1f %+5.1f %% %8.1f %8.1f %+5.1f %%\n", m.name, 1e3*m.a.P50, 1e3*m.b.P50, 100*off, 1e3*m.a.P95, 1e3*m.b.P95, 100*(m.b.P95/m.a.P95-1))
		if real.Void == "" && (off > simulatedError || off < -simulatedError) {
			t.Errorf("%s: the median is %.1f %% off", m.name, 100*off)
		}
	}
	return table.String()
}
