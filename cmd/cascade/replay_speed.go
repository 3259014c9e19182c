package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/clockspeed"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
)

// errSlower ends the runs at a speed at which the engines fall behind.
var errSlower = errors.New("the engines fall behind at this speed")

// startAndStop is about how long a fleet takes to start and to stop.
const startAndStop = 5 * time.Second

// recentReadings is how many of the readings, one per second, the recent lateness covers.
const recentReadings = 5

// runAll runs every fleet at the same speed: the last one that was tried.
func (c *presetComparison) runAll(ctx context.Context, s *settings) ([]presetResult, error) {
	for {
		outcomes, err := c.runAtSpeed(ctx, s, c.governor.Speed())
		if !errors.Is(err, errSlower) {
			return outcomes, err
		}
	}
}

// runAtSpeed runs every fleet at a speed. The error is errSlower if the engines of one fall behind.
func (c *presetComparison) runAtSpeed(ctx context.Context, s *settings, speed float64) (outcomes []presetResult, err error) {
	e := c.emulation
	e.speed = speed
	if c.fleet, err = e.buildFleet(); err != nil {
		return nil, err
	}
	// All runs must serve the same requests: round robin would be compared without those that
	// its overloaded replicas refuse.
	c.fleet.Overload.Admission = config.AdmissionOff
	each := time.Duration(c.seconds/speed*float64(time.Second)) + startAndStop
	fmt.Fprintf(s.Stderr, "%d runs at speed %g, about %s each, %s in all\n", len(comparedFleets), speed, roundDuration(each), roundDuration(each*time.Duration(len(comparedFleets))))
	begun := time.Now()
	for i, of := range comparedFleets {
		if left := len(comparedFleets) - i; i > 0 {
			mean := time.Since(begun) / time.Duration(i)
			fmt.Fprintf(s.Stderr, "left: %d of %d runs, about %s\n", left, len(comparedFleets), roundDuration(mean*time.Duration(left)))
		}
		o, err := c.run(ctx, s, of)
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// roundDuration rounds an estimate to what can be promised.
func roundDuration(d time.Duration) time.Duration {
	return max(d.Round(5*time.Second), 5*time.Second)
}

// estimateSeconds estimates when the last request ends, in engine time: with the iterations that the
// cost model predicts for one stage, or with idle ones where it predicts none.
func estimateSeconds(w policies.Workload, requests []trace.Request) float64 {
	iteration := w.Cost.D0
	if p, err := partition.Flow.Price(w, nil, []int{w.Replicas}); err == nil {
		iteration = p.Iterations[0]
	}
	last := 0.0
	for _, r := range requests {
		last = max(last, r.At.Seconds()+float64(r.Output)*iteration)
	}
	return last
}

// watch decides about a run in progress. Its error ends the run.
func (c *presetComparison) watch(s *settings, bar *progress.Bar, r clockspeed.Reading) error {
	speed := c.governor.Speed()
	switch c.governor.Watch(r) {
	case clockspeed.Confirmed:
		bar.Clear()
		fmt.Fprintf(s.Stderr, "  the engines keep up at speed %g: %v\n", speed, r)
	case clockspeed.Slower:
		bar.Clear()
		return c.slowDown(s, speed, r)
	case clockspeed.Void:
		return errors.New(c.tooBusy(r))
	}
	return nil
}

// judge decides about a run that has ended: it returns why its figures do not count, or "". The
// idle CPU is only a sign that engines may be late; here their lateness is measured.
func (c *presetComparison) judge(s *settings, r clockspeed.Reading) (void string, err error) {
	speed := c.governor.Speed()
	switch c.governor.End(r) {
	case clockspeed.Slower:
		return "", c.slowDown(s, speed, r)
	case clockspeed.Void:
		return c.tooBusy(r), nil
	}
	return "", nil
}

// slowDown says why a speed is given up.
func (c *presetComparison) slowDown(s *settings, speed float64, r clockspeed.Reading) error {
	why := fmt.Sprintf("at speed %g %v; a run is valid up to %g", speed, r, clockspeed.MaxLateness)
	c.slowed = append(c.slowed, why)
	fmt.Fprintf(s.Stderr, "  this machine is too slow: %s. All runs start again at speed %g.\n", why, c.governor.Speed())
	return errSlower
}

// tooBusy says what to do if the engines are late at the slowest speed.
func (c *presetComparison) tooBusy(r clockspeed.Reading) string {
	return fmt.Sprintf("the machine is too busy, even for speed %g: %v, and a run is valid up to %g; stop other programs, or emulate less, for instance with --replicas %d --rate %.3g",
		c.governor.Speed(), r, clockspeed.MaxLateness, max(1, c.emulation.replicas/2), trace.Rate(c.requests)/2)
}

// writeSpeed says at which speed the fleets ran, and why.
func (c *presetComparison) writeSpeed(w io.Writer, outcomes []presetResult) {
	late := make([]string, len(outcomes))
	for i, o := range outcomes {
		late[i] = fmt.Sprintf("%.2g (%s)", o.Lateness, o.Result.Name)
	}
	fmt.Fprintf(w, "All fleets ran at speed %g. Tokens came %s iterations late on average; a run is valid up to %g.\n", c.fleet.Speed, strings.Join(late, ", "), clockspeed.MaxLateness)
	if len(c.slowed) > 0 {
		fmt.Fprintf(w, "The clock was slowed down from speed %g, for lack of CPU: %s.\n", c.emulation.speed, strings.Join(c.slowed, "; "))
	}
}

// meter returns a reading of a run: elapsed is its time, 0 at the end, and idle the share of idle CPU.
type meter func(elapsed time.Duration, idle float64) clockspeed.Reading

// meterPace returns a meter of the engines of a fleet since now.
func meterPace(f *inprocess.Fleet) meter {
	paces := []emulator.Pace{f.Pace()}
	return func(elapsed time.Duration, idle float64) clockspeed.Reading {
		now := f.Pace()
		recent := paces[max(0, len(paces)-recentReadings)]
		paces = append(paces, now)
		return clockspeed.Reading{Elapsed: elapsed, Lateness: now.Since(paces[0]).Lateness(), Recent: now.Since(recent).Lateness(), Idle: idle}
	}
}
