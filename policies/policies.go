// Package policies defines Cascade's shared types and the one-method interfaces
// of its scheduling policies.
//
// The types are those that all folders use: lengths, costs, loads, flows,
// replicas, stages and plans. A policy is a pure function or a pure state machine
// over these types, in a package of its own below this one. It reads no clock,
// does no I/O and starts no goroutine, so the same source runs natively, in the
// simulator and inside a Wasm sandbox. The package imports only small parts of
// the standard library (no fmt, no JSON), because every Wasm guest contains it.
package policies

import (
	"math"
	"strconv"
)

// Tokens counts tokens: a prompt's, an output's or a sequence's length. It is
// never negative in a valid value.
type Tokens int64

// Unbounded is the end of a range that has no end. It is the largest int64,
// which is also the end that Envoy's and gRPC's range_match use for "open".
const Unbounded Tokens = math.MaxInt64

// String prints the number, or "∞" for Unbounded.
func (t Tokens) String() string {
	if t == Unbounded {
		return "∞"
	}
	return strconv.FormatInt(int64(t), 10)
}

// Grouped returns t with commas between the thousands, as tables and plots show lengths: 1,536.
func (t Tokens) Grouped() string {
	text := t.String() // "∞" for Unbounded, which has three bytes
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// LengthRange returns the lengths from low up to, but without, high, as tables and plots show them:
// 464–1,024, and 12,288–∞.
func LengthRange(low, high Tokens) string { return low.Grouped() + "–" + high.Grouped() }

// Bytes counts bytes.
type Bytes int64

// ReplicaID names a replica: one engine (of one or several ranks) and its
// migrator. It is unique in a fleet, and it is not reused for another replica
// while a request of the old one is running.
type ReplicaID string

// Epoch numbers the plans of a fleet. It grows by at least one with every
// change of any plan, and never goes back, not even across restarts.
type Epoch uint64

// MaxStages is the largest number of stages in a plan. The control plane
// creates this many clusters per model once, so that no plan change ever
// adds or edits a cluster.
const MaxStages = 8

// A Violation is one broken invariant: which value breaks it, and what it
// requires. It is the error type of every Validate in this package.
type Violation struct {
	Subject   string // the offending value, for instance "stage 2 of model m"
	Invariant string // the number and text, as in the type's comment
}

// Error says which value breaks which invariant.
func (v *Violation) Error() string { return v.Subject + ": " + v.Invariant }
