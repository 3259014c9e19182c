package clockspeed_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/cascadeinfer/cascade/cmd/internal/clockspeed"
)

var verdicts = map[clockspeed.Verdict]string{
	clockspeed.Continue: "continue", clockspeed.Confirmed: "confirmed", clockspeed.Slower: "slower", clockspeed.Void: "void",
}

// TestSpeed runs testdata/*.txt (package datadriven; -rewrite rewrites the expected output). "start
// speed=S floor=F" starts a comparison. "run" passes its lines to the Governor, and prints the verdicts and the
// speed: "SECONDS LATENESS RECENT" in percent is a reading during a run, "end LATENESS" that of its end.
func TestSpeed(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, file string) {
		var g *clockspeed.Governor
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "start" {
				var speed int
				d.ScanArgs(t, "speed", &speed)
				floor := "0"
				if d.HasArg("floor") {
					d.ScanArgs(t, "floor", &floor)
				}
				least, err := strconv.ParseFloat(floor, 64)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				g = clockspeed.New(float64(speed), least)
				return fmt.Sprintf("speed %g\n", g.Speed())
			}
			var out strings.Builder
			for line := range strings.Lines(d.Input) {
				r := clockspeed.Reading{Idle: -1}
				verdict := clockspeed.Continue
				if _, err := fmt.Sscanf(line, "end %f", &r.Lateness); err == nil {
					r.Lateness /= 100
					verdict = g.End(r)
				} else {
					var seconds float64
					if _, err := fmt.Sscanf(line, "%f %f %f", &seconds, &r.Lateness, &r.Recent); err != nil {
						d.Fatalf(t, "%q: %v", line, err)
					}
					r.Elapsed = time.Duration(seconds * float64(time.Second))
					r.Lateness, r.Recent = r.Lateness/100, r.Recent/100
					verdict = g.Watch(r)
				}
				fmt.Fprintf(&out, "%s: %s, speed %g\n", strings.TrimSpace(line), verdicts[verdict], g.Speed())
			}
			return out.String()
		})
	})
}

func TestReadingString(t *testing.T) {
	for want, r := range map[string]clockspeed.Reading{
		"tokens came 0.0084 iterations late on average, with 61 % of the CPU idle": {Lateness: 0.0084, Idle: 0.61},
		"tokens came 2.5 iterations late on average":                               {Lateness: 2.5, Idle: -1},
	} {
		if got := r.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
