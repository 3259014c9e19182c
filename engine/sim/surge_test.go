package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/admission"
)

const (
	surgeBegins = 40 * time.Second
	surgeLasts  = time.Minute // until prompts are four times as long
	surgeEnds   = 160 * time.Second
)

// surge draws the usual mix, of which the prompts grow to four times their length within a minute, and
// stay so.
func surge(rate float64, seed uint64) trace.Source {
	from := mix(int(rate*surgeEnds.Seconds()), rate, seed)
	return sourceFunc(func() (trace.Request, error) {
		r, err := from.Next()
		grown := min(1, max(0, float64(r.At-surgeBegins)/float64(surgeLasts)))
		r.Input += policies.Tokens(3 * grown * float64(r.Input))
		r.Prefix = nil // which would be longer, too
		return r, err
	})
}

// classOf returns the class of a prompt's length.
func classOf(input policies.Tokens) int {
	bounds := replay.ClassBounds()
	class := 0
	for class+2 < len(bounds) && bounds[class+1] <= input {
		class++
	}
	return class
}

// deadlines returns until when a request of each class must have its first token: clients give up at twice
// the slowdown that admission tolerates, of the class's mean latency on an idle replica. Admission lets a
// short request wait like one of half of the mean latency, so no deadline is shorter than for that one.
func deadlines(records []replay.Record) []float64 {
	sums, counts := make([]float64, len(replay.ClassBounds())), make([]float64, len(replay.ClassBounds()))
	all := 0.0
	for _, r := range records {
		input, output := float64(r.Input), float64(r.Output)
		alone := profile.D2*input + profile.D3*input*input + output*(profile.D0+profile.D1+profile.D4*(input+output))
		sums[classOf(r.Input)] += alone
		counts[classOf(r.Input)]++
		all += alone
	}
	for i := range sums {
		sums[i] = 2 * admission.DefaultSlowdown * max(sums[i]/max(1, counts[i]), all/float64(len(records))/2)
	}
	return sums
}

// late returns how many of the requests that were admitted got no first token within the deadline of their
// class, how many were refused, and the longest wait as a share of its deadline. Any other failure is an error.
func late(t *testing.T, c Config, rate float64) (late, refused int, longest float64) {
	t.Helper()
	_, records := run(t, c, surge(rate, c.Seed))
	limits := deadlines(records)
	for _, r := range records {
		switch {
		case r.Error == Refused:
			refused++
		case r.Error != "":
			t.Errorf("%+v", r)
		default:
			share := r.TTFT / limits[classOf(r.Input)]
			longest = max(longest, share)
			if share > 1 {
				late++
			}
		}
	}
	return late, refused, longest
}

// TestSurge makes all prompts four times as long within a minute, for a fleet that is busy before: every
// request that is admitted has its first token within the deadline of its class, also in stages that
// were right for the old lengths. Without admission many do not, so that the test can see it.
func TestSurge(t *testing.T) {
	testkit.SkipSlow(t) // TestAdmission is quick
	testkit.SkipUnderRace(t)
	const replicas, rate = 8, 60
	cases := map[string]Config{
		"planned":                 {Policy: Cascade},
		"without moves":           {Policy: WithoutMoves},
		"stages of the old mix":   {Policy: Cascade, Stages: policies.Partition{Cuts: []policies.Tokens{1024}, Counts: []int{5, 3}}},
		"stages without a market": {Policy: WithoutMoves, Stages: policies.Partition{Cuts: []policies.Tokens{1024}, Counts: []int{5, 3}}},
	}
	for name, c := range cases {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				c.Replicas, c.KVTokens, c.Admission, c.Seed = replicas, 20_000, true, seed
				missed, refused, longest := late(t, c, rate)
				c.Admission = false
				without, _, _ := late(t, c, rate)
				t.Logf("%d of %d requests refused, %d late, the longest wait %.2f of its deadline; without admission %d late", refused, int(rate*surgeEnds.Seconds()), missed, longest, without)
				if missed > 0 {
					t.Errorf("%d requests that were admitted had no first token in time", missed)
				}
				if without < 100 {
					t.Errorf("without admission only %d are late: the surge shows nothing", without)
				}
			})
		}
	}
}
