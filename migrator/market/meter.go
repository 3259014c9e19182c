package market

import "github.com/cascadeinfer/cascade/policies"

// throughputMeter measures at which rate requests come in: tokens per second of the time
// in which at least one transfer runs, all of them together.
type throughputMeter struct {
	running   int
	since     policies.Micros // when the time was last booked
	busy      policies.Micros
	tokens    policies.Tokens // that came in busy
	transfers int             // transfers in the two
}

// recentTransfers transfers make the rate: at twice as many, all count half.
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

// end ends a transfer that has brought so much: 0 when it failed, which took
// its time all the same.
func (t *throughputMeter) end(now policies.Micros, tokens policies.Tokens) {
	t.accrue(now)
	t.running--
	t.tokens += tokens
	if t.transfers++; t.transfers >= 2*recentTransfers {
		t.busy, t.tokens, t.transfers = t.busy/2, t.tokens/2, recentTransfers
	}
}

// rate is in tokens per second; 0 while it is unknown.
func (t *throughputMeter) rate() policies.Tokens {
	if t.busy <= 0 || t.tokens <= 0 {
		return 0
	}
	return max(1, policies.Tokens(float64(t.tokens)/float64(t.busy)*float64(policies.Second)))
}
