package transfer

import "github.com/cascadeinfer/cascade/policies"

// Config sets a Machine up. Times are real ones: they bound faults, not work,
// and do not shrink with an emulated fleet's speed.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// Retry is how often who waits for an answer repeats itself. It exceeds a
	// round trip. 0 means 100 ms.
	Retry policies.Micros
	// Silence is how long the other side of a move may say nothing before Swap;
	// a multiple of Retry. 0 means 1 s.
	Silence policies.Micros
	// Lease is how long a target that is ready keeps its blocks without a word
	// from its source. 0 means 2 s.
	Lease policies.Micros
	// Frozen bounds the time from the freeze to the Swap. 0 means 1 s.
	Frozen policies.Micros
	// Commit is how long a front may try to go on at the target of a Live move,
	// whose request stands still meanwhile. 0 means 2 s.
	Commit policies.Micros
	// Recompute is the same by Reprompt, whose request runs on. 0 means 20 s.
	Recompute policies.Micros
	// Longest bounds a move from its beginning to its Swap. 0 means 60 s.
	Longest policies.Micros
	// Memory is how long the answers to moves that are over are kept, for those
	// who ask again. It exceeds Lease and Longest. 0 means 2 min.
	Memory policies.Micros
	// Rounds is how many rounds of blocks are pulled at most before the freeze. Of
	// one that comes in several messages the last one counts.
	// 0 means 3.
	Rounds int
	// Tail is how many full blocks are few enough to be left for the manifest.
	// 0 means 4.
	Tail int
}

// remembered bounds what is kept of moves that are over, in each role.
const remembered = 4096

// swaps bounds the moves that a front handles at once. The others are not
// answered before there is room.
const swaps = 4096

// complete fills in the defaults and reports the first bad field as a
// *policies.Violation.
func (c Config) complete() (Config, error) {
	if c.Self == "" {
		return c, &policies.Violation{Subject: "transfer", Invariant: "Self must name the own replica"}
	}
	for _, f := range [...]struct {
		name      string
		value     *policies.Micros
		otherwise policies.Micros
	}{
		{"Retry", &c.Retry, 100 * policies.Millisecond}, {"Silence", &c.Silence, policies.Second}, {"Lease", &c.Lease, 2 * policies.Second},
		{"Frozen", &c.Frozen, policies.Second}, {"Commit", &c.Commit, 2 * policies.Second}, {"Recompute", &c.Recompute, 20 * policies.Second},
		{"Longest", &c.Longest, 60 * policies.Second}, {"Memory", &c.Memory, 120 * policies.Second},
	} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 0 {
			return c, &policies.Violation{Subject: "transfer", Invariant: f.name + " must be positive, or 0 for its default"}
		}
	}
	for _, f := range [...]struct {
		name      string
		value     *int
		otherwise int
	}{{"Rounds", &c.Rounds, 3}, {"Tail", &c.Tail, 4}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 0 {
			return c, &policies.Violation{Subject: "transfer", Invariant: f.name + " must be positive, or 0 for its default"}
		}
	}
	switch {
	case c.Silence < 2*c.Retry:
		return c, &policies.Violation{Subject: "transfer", Invariant: "Silence must be at least twice Retry"}
	case c.Memory < c.Lease || c.Memory < c.Longest:
		return c, &policies.Violation{Subject: "transfer", Invariant: "Memory must not be below Lease and Longest"}
	}
	return c, nil
}
