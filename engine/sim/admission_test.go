package sim

import (
	"testing"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// TestAdmission sends two replicas three times what they can do: with admission, those that are admitted
// take at most twice the tolerated slowdown, which is a prediction, and as much work is done; without,
// requests wait ever longer.
func TestAdmission(t *testing.T) {
	slowest := func(admit bool) (worst float64, result Result) {
		p := profile
		result, records := run(t, Config{Replicas: 2, Policy: OneStage, KVTokens: 20_000, Admission: admit}, mix(3000, 90, 1))
		for _, r := range records {
			if r.Error != "" {
				if r.Error != Refused || r.E2E != 0 || !admit {
					t.Errorf("admission %v: %+v", admit, r)
				}
				continue
			}
			input, output := float64(r.Input), float64(r.Output)
			alone := p.D2*input + p.D3*input*input + output*(p.D0+p.D1+p.D4*(input+output))
			worst = max(worst, r.E2E/max(alone, 0.75)) // short ones may wait as if they took half of the mean
		}
		return worst, result
	}
	admitted, with := slowest(true)
	all, without := slowest(false)
	t.Logf("slowdown %.1f with admission, %.1f without; %d of 3000 refused; %.0f and %.0f tokens/s", admitted, all, with.Failed(), with.Engine.TokensPerSecond, without.Engine.TokensPerSecond)
	if admitted > 10 || all < 3*admitted || with.Failed() < 300 {
		t.Errorf("slowdown %v with admission, %v without; %d refused", admitted, all, with.Failed())
	}
	if with.Engine.TokensPerSecond < 0.9*without.Engine.TokensPerSecond {
		t.Errorf("%.0f tokens/s with admission, %.0f without", with.Engine.TokensPerSecond, without.Engine.TokensPerSecond)
	}
	for _, f := range with.Failures {
		if f.Kind != replay.Kind("http 429") {
			t.Errorf("%+v", f)
		}
	}
}
