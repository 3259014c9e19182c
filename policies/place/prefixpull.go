package place

import (
	"math"
	"math/bits"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
)

const (
	// pullSetup is for the calls before the first byte: the peer pins the blocks, checksums
	// them and answers, and the receiver opens a transport.
	pullSetup policies.Micros = 10_000
	// pullMargin is by how many percent a pull must be faster than computing.
	pullMargin = 25
)

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

// PullDecision is what DecidePull returns.
type PullDecision struct {
	Pull bool
	// Tokens is how many tokens the peer holds beyond the own engine's, 0 for none.
	Tokens policies.Tokens
	// Transfer is the predicted time of the pull, the largest value if it is not known.
	// Recompute is that of computing the tokens.
	Transfer, Recompute policies.Micros
}

// DecidePull decides whether a replica copies the KV of a prompt's beginning that a peer holds beyond the own
// engine's, or computes it again.
//
// Invariants:
//
//  1. A prefix is pulled only if the transfer, with its setup and a margin, takes less time than
//     computing the same tokens.
//  2. PullDecision.Recompute is the time to compute the tokens that would be pulled. A caller that
//     abandons the pull after that time delays no request for longer than computing would have.
//  3. What is unknown (a rate, a size, a cost of 0) never argues for a pull.
func DecidePull(o PullOffer) PullDecision {
	own := max(o.Own, 0)
	if o.Held <= own {
		return PullDecision{}
	}
	d := PullDecision{Tokens: o.Held - own, Transfer: never, Recompute: Recompute(o.Cost, own, o.Held)}
	if o.Rate <= 0 || o.TokenBytes <= 0 {
		return d
	}
	d.Transfer = transferTime(d.Tokens, o.TokenBytes, o.Rate)
	if rest := min(max(o.Latency, 0), never-pullSetup) + pullSetup; d.Transfer > never-rest {
		d.Transfer = never
	} else {
		d.Transfer += rest
	}
	d.Pull = pullPays(d.Transfer, d.Recompute)
	return d
}

// pullPays reports whether a pull that takes so long, setup included, is faster by the margin than computing
// the same tokens.
func pullPays(transfer, recompute policies.Micros) bool {
	// Divided first: neither side overflows, and rounding argues against the pull.
	return transfer < recompute/100*(100-pullMargin)
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
