// Package trace holds request traces: when requests arrive, how long their
// prompts and answers are, and which prompts share a prefix.
//
// It reads the published formats (arrival CSV, Azure CSV, Mooncake JSONL),
// shapes a trace for a replay (rate, jitter, cuts), fits an open-loop
// Generator to any trace and draws new traces from one. It sends nothing: the
// replay client does. A trace is data only: every function here is a pure
// function of its arguments and a seed.
package trace

import (
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// BlockTokens is the length of the prompt block that one prefix id stands
// for, as in the Mooncake traces.
const BlockTokens = 512

// NoArrival is Request.At where the source has no arrival times, only
// lengths. Shape gives such requests times at a rate.
const NoArrival time.Duration = -time.Millisecond

// Request is one line of a trace.
//
// Invariants, kept by Read, Shape.Apply and Generator.Generate:
//  1. Input and Output are at least 1 and at most MaxTokens,
//  2. At is NoArrival in every request of a trace or in none; else it is the
//     time since the trace began, not negative, and not before the request above,
//  3. Prefix has at most one id for each started block of the prompt.
type Request struct {
	At     time.Duration
	Input  policies.Tokens // prompt length
	Output policies.Tokens // answer length
	// Prefix names the prompt's blocks of BlockTokens, first to last. Equal ids
	// mean equal blocks after equal prefixes. Nil where nothing is known: then
	// the prompt shares nothing with any other.
	Prefix []uint64
}

// blocks is the number of started blocks of a prompt.
func blocks(input policies.Tokens) int {
	return int((input + BlockTokens - 1) / BlockTokens)
}

// timed reports whether the trace has arrival times.
func timed(requests []Request) bool {
	return len(requests) > 0 && requests[0].At >= 0
}
