package place

import (
	"math"
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

// The defaults of a Policy.
const (
	// DefaultPullSetup is for the calls before the first byte: the peer pins the blocks, checksums
	// them and answers, and the receiver opens a transport.
	DefaultPullSetup policies.Micros = 10_000
	// DefaultPullMargin is in percent.
	DefaultPullMargin = 25
)

// PullRule decides whether a replica copies the KV of a prompt's beginning from a peer that holds
// it, or computes it again. The zero value has the defaults.
//
// Invariants:
//
//  1. A prefix is pulled only if the transfer, with Setup and the margin, takes less time than
//     computing the same tokens.
//  2. PullDecision.Recompute is the time to compute the tokens that would be pulled. A caller that
//     abandons the pull after that time delays no request for longer than computing would have.
//  3. What is unknown (a rate, a size, a cost of 0) never argues for a pull.
type PullRule struct {
	// Setup is the time that a pull takes whatever its size. 0 means DefaultPullSetup.
	Setup policies.Micros
	// Margin is by how many percent a pull must be faster than computing, below 100. 0 means
	// DefaultPullMargin.
	Margin int
}

// PullOffer is a prefix that a peer holds.
type PullOffer struct {
	// Own and Held are how many leading tokens of the prompt the own engine and the peer have
	// the KV of.
	Own, Held policies.Tokens
	// TokenBytes is the size of one token's KV: what the link carries.
	TokenBytes policies.Bytes
	// Rate and Latency are those of the link from the peer.
	Rate    links.Rate
	Latency policies.Micros
	// Cost is that of the own engine.
	Cost policies.Cost
}

// PullDecision is what Decide returns.
type PullDecision struct {
	Pull bool
	// Tokens is how many tokens the peer holds beyond the own engine's, 0 for none.
	Tokens policies.Tokens
	// Transfer is the predicted time of the pull, the largest value if it is not known.
	// Recompute is that of computing the tokens.
	Transfer, Recompute policies.Micros
}

// Decide returns whether the tokens that the peer holds beyond the own engine's are pulled.
func (p PullRule) Decide(o PullOffer) PullDecision {
	own := max(o.Own, 0)
	if o.Held <= own {
		return PullDecision{}
	}
	d := PullDecision{Tokens: o.Held - own, Transfer: never, Recompute: Recompute(o.Cost, own, o.Held)}
	if o.Rate <= 0 || o.TokenBytes <= 0 {
		return d
	}
	setup := p.Setup
	if setup <= 0 {
		setup = DefaultPullSetup
	}
	d.Transfer = transferTime(d.Tokens, o.TokenBytes, o.Rate)
	if rest := max(o.Latency, 0) + setup; d.Transfer > never-rest {
		d.Transfer = never
	} else {
		d.Transfer += rest
	}
	d.Pull = p.Pays(d.Transfer, d.Recompute)
	return d
}

// Pays reports whether a pull that takes so long, Setup included, is faster by the margin than computing
// the same tokens.
func (p PullRule) Pays(transfer, recompute policies.Micros) bool {
	margin := p.Margin
	if margin <= 0 || margin >= 100 {
		margin = DefaultPullMargin
	}
	// Divided first: neither side overflows, and rounding argues against the pull.
	return transfer < recompute/100*policies.Micros(100-margin)
}

// Recompute returns how long an engine takes to compute the tokens of a prompt from position own to
// position held, rounded down.
func Recompute(c policies.Cost, own, held policies.Tokens) policies.Micros {
	if held <= own || own < 0 {
		return 0
	}
	a, b := float64(own), float64(held)
	seconds := float64(c.D2*(b-a)) + float64(c.D3*float64(float64(b*b)-float64(a*a)))
	micros := float64(seconds * 1e6)
	if !(micros > 0) { // not a number, too
		return 0
	}
	if micros >= float64(never) {
		return never
	}
	return policies.Micros(micros)
}

// never is the largest time.
const never policies.Micros = math.MaxInt64

// transferTime returns the time of so many tokens on a link, rounded up.
func transferTime(tokens policies.Tokens, size policies.Bytes, rate links.Rate) policies.Micros {
	high, bytes := bits.Mul64(uint64(tokens), uint64(size))
	if high != 0 {
		return never
	}
	high, low := bits.Mul64(bytes, 1_000_000)
	low, carry := bits.Add64(low, uint64(rate)-1, 0)
	if high += carry; high >= uint64(rate) {
		return never
	}
	micros, _ := bits.Div64(high, low, uint64(rate))
	return policies.Micros(min(micros, uint64(never)))
}
