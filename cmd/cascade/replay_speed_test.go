package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/cmd/internal/clockspeed"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/cmd/internal/stageplan"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// fewRequests returns requests that arrive evenly over some time.
func fewRequests(n int, over time.Duration) []trace.Request {
	out := make([]trace.Request, n)
	for i := range out {
		out[i] = trace.Request{At: over * time.Duration(i) / time.Duration(n-1), Input: 50, Output: 5}
	}
	return out
}

// TestSlowDown compares fleets on a machine that is too slow for them: the first fleet is late at its
// end, then the second one while it runs. All three have to run at the third speed.
func TestSlowDown(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	s := &settings{cli.App{Stdout: &out, Stderr: &progress, LogLevel: "error", LogFormat: "text"}}
	// At half the speed a run takes a little longer than a second, after which it is looked at.
	c, err := newPresetComparison(emulationFlags{replicas: 2, profile: "h200-llama-3.1-8b", context: 8192, speed: 8, tp: 1, prompt: "text", window: time.Minute},
		pluginFlags{native: true}, fewRequests(8, 5*time.Second), 0)
	testkit.NoError(t, err)
	runs := map[float64]int{}
	c.meter = func(f *inprocess.Fleet) meter {
		speed := c.governor.Speed()
		runs[speed]++
		run := runs[speed]
		inTime := meterPace(f)
		return func(elapsed time.Duration, idle float64) clockspeed.Reading {
			switch {
			case speed == 8 && elapsed == 0:
				return clockspeed.Reading{Lateness: 0.3, Recent: 0.3, Idle: 0.28}
			case speed == 4 && run == 2: // as if a run had taken a minute, its engines reach half of the speed
				return clockspeed.Reading{Elapsed: time.Minute, Lateness: 1, Recent: 1, Idle: 0.01}
			}
			if r := inTime(elapsed, idle); r.Lateness < 0 || r.Recent < 0 {
				t.Errorf("%+v", r)
			}
			return clockspeed.Reading{Elapsed: elapsed, Idle: idle}
		}
	}
	if err := c.compare(t.Context(), s); err != nil {
		t.Fatalf("%v\n%s", err, &progress)
	}
	if got := fmt.Sprint(runs); got != "map[1.3:3 4:2 8:1]" {
		t.Errorf("runs by speed: %s", got)
	}
	for _, want := range []string{
		"All fleets ran at speed 1.3. Tokens came 0 (round robin), 0 (placement alone), 0 (cascade) iterations late on average; a run is valid up to 0.25.",
		"The clock was slowed down from speed 8, for lack of CPU: at speed 8 tokens came 0.3 iterations late on average, with 28 % of the CPU idle; a run is valid up to 0.25; " +
			"at speed 4 tokens came 1 iterations late on average, with 1 % of the CPU idle; a run is valid up to 0.25.",
		"wall time × 1.3, the speed of the engines",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the result lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "void") {
		t.Error("a run is void")
	}
	for _, want := range []string{"3 runs at speed 8, about ", "3 runs at speed 4, about ", "3 runs at speed 1.3, about 10s each", "left: 1 of 3 runs, about "} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("the progress lacks %q", want)
		}
	}
	if t.Failed() {
		t.Logf("progress:\n%s\nresult:\n%s", &progress, &out)
	}
}

// TestTooBusy checks what a comparison says when even the slowest speed is too fast.
func TestTooBusy(t *testing.T) {
	s := &settings{cli.App{Stderr: io.Discard}}
	c := &presetComparison{emulation: emulationFlags{replicas: 8, speed: 2}, governor: clockspeed.New(2, 0), requests: fewRequests(11, time.Second)}
	hopeless := clockspeed.Reading{Elapsed: time.Minute, Lateness: 2, Recent: 2}
	bar := progress.New(s.Stderr, "test", 10)
	if err := c.watch(s, bar, hopeless); !errors.Is(err, errSlower) {
		t.Fatalf("at speed %g: %v", c.governor.Speed(), err)
	}
	if err := c.watch(s, bar, clockspeed.Reading{Elapsed: time.Minute, Lateness: 0.4, Recent: 0.4}); !errors.Is(err, errSlower) {
		t.Fatalf("at speed %g: %v", c.governor.Speed(), err)
	}
	const remedy = "stop other programs, or emulate less, for instance with --replicas 4 --rate 5"
	if err := c.watch(s, bar, hopeless); err == nil || errors.Is(err, errSlower) || !strings.Contains(err.Error(), remedy) {
		t.Errorf("at the slowest speed: %v", err)
	}
	if void, err := c.judge(s, hopeless); err != nil || !strings.Contains(void, "the machine is too busy, even for speed 0.33: tokens came 2 iterations late") || !strings.Contains(void, remedy) {
		t.Errorf("at the end: %q, %v", void, err)
	}
}

// TestEstimateSeconds checks that the last request to end counts, and not the last one to arrive.
func TestEstimateSeconds(t *testing.T) {
	profile := testkit.Must(config.LoadProfile("h200-llama-3.1-8b", "."))
	estimate := func(requests []trace.Request) float64 {
		plan := stageplan.Config{Profile: profile, Context: 8192, Replicas: 2}
		w, err := plan.Workload(requests)
		testkit.NoError(t, err)
		return estimateSeconds(w, requests)
	}
	requests := fewRequests(100, 10*time.Second)
	short := estimate(requests)
	if short < 10 || short > 11 {
		t.Errorf("%v s", short)
	}
	requests[50].Output = 4000
	if long := estimate(requests); long < short+10 || long > short+120 {
		t.Errorf("with a long request %v s", long)
	}
}
