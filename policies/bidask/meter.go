package bidask

import "github.com/cascadeinfer/cascade/policies"

// throughputMeter measures the rate of all incoming transfers together: tokens per second of the
// time during which at least one transfer runs.
type throughputMeter struct {
	running   int
	since     policies.Micros // when busy was last updated
	busy      policies.Micros
	tokens    policies.Tokens // received in busy
	transfers int             // transfers that ended in busy
}

// recentTransfers is half the number of transfers at which all counts are halved.
const recentTransfers = 8

func (t *throughputMeter) accrue(now policies.Micros) {
	if t.running > 0 {
		t.busy += now - t.since
	}
	t.since = now
}

func (t *throughputMeter) begin(now policies.Micros) {
	t.accrue(now)
	t.running++
}

// end records the end of a transfer of so many tokens, 0 if it failed.
func (t *throughputMeter) end(now policies.Micros, tokens policies.Tokens) {
	t.accrue(now)
	t.running--
	t.tokens += tokens
	if t.transfers++; t.transfers >= 2*recentTransfers {
		t.busy, t.tokens, t.transfers = t.busy/2, t.tokens/2, recentTransfers
	}
}

// rate returns tokens per second, or 0 if unknown.
func (t *throughputMeter) rate() policies.Tokens {
	if t.busy <= 0 || t.tokens <= 0 {
		return 0
	}
	return max(1, policies.Tokens(float64(t.tokens)/float64(t.busy)*float64(policies.Second)))
}
