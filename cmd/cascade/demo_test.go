package main

import (
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/clockspeed"
	"github.com/cascadeinfer/cascade/cmd/internal/demo"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestExpectStages says before the runs whether stages will form: only if one stage cannot carry the load.
func TestExpectStages(t *testing.T) {
	e := &emulationFlags{replicas: 8, profile: "rtxpro6000-llama-3.1-8b", context: 131072, speed: 2, tp: 1} // the trace has real times
	fleet, err := e.buildFleet()
	testkit.NoError(t, err)
	requests, _, err := (&traceFlags{mix: "mixed", requests: 3600, rate: 30, seed: 1}).readWithin(131072)
	testkit.NoError(t, err)
	plan, err := e.planConfig()
	testkit.NoError(t, err)
	w, err := plan.Workload(requests)
	testkit.NoError(t, err)
	x, err := demo.ExpectStages(w, fleet.Fleet)
	testkit.NoError(t, err)
	if got := x.Announce(); x < 0.2 || x >= 1 || !strings.HasPrefix(got, "no stages are expected: requests are placed by price") {
		t.Errorf("%v: %s", x, got)
	}
	if got := demo.Expectation(1).Announce(); !strings.HasPrefix(got, "stages are expected: ") {
		t.Error(got)
	}
}

// TestDemoFlags keeps the demo to a handful of flags, and its duration bounded.
func TestDemoFlags(t *testing.T) {
	command := newDemo(&settings{})
	if n := strings.Count(command.LocalFlags().FlagUsages(), "\n"); n != 6 {
		t.Errorf("%d flags:\n%s", n, command.LocalFlags().FlagUsages())
	}
	for _, n := range []int{300, 3600} {
		requests, _, err := (&traceFlags{mix: "mixed", requests: n, rate: 30, seed: 1}).readWithin(131072)
		testkit.NoError(t, err)
		c, err := newPresetComparison(emulationFlags{
			replicas: 8, profile: "rtxpro6000-llama-3.1-8b", context: 131072, speed: 2, tp: 1, window: 45 * time.Second,
		}, pluginFlags{}, requests, demoLimit)
		testkit.NoError(t, err)
		for range 5 { // a machine that is far too slow
			c.governor.Watch(clockspeed.Reading{Elapsed: 10 * time.Second, Lateness: 20, Recent: 20})
		}
		all := time.Duration(len(comparedFleets)) * (startAndStop + time.Duration(c.seconds/c.governor.Speed()*float64(time.Second)))
		if all > demoLimit+30*time.Second || n == 300 && all > 10*time.Minute {
			t.Errorf("%d requests take %v at speed %g", n, all, c.governor.Speed())
		}
	}
}
