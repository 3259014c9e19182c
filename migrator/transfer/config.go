package transfer

import "github.com/cascadeinfer/cascade/policies"

// Config sets a Machine up. Times are real ones: they bound faults, not work,
// and do not shrink with an emulated fleet's speed.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// RetryInterval is how often who waits for an answer repeats itself. It exceeds a
	// round trip. 0 means 100 ms.
	RetryInterval policies.Micros
	// PeerTimeout is how long the other side of a move may say nothing before Swap;
	// a multiple of Retry. 0 means 1 s.
	PeerTimeout policies.Micros
	// ReadyTimeout is how long a target that is ready keeps its blocks without a word
	// from its source. 0 means 2 s.
	ReadyTimeout policies.Micros
	// FreezeTimeout bounds the time from the freeze to the Swap. 0 means 1 s.
	FreezeTimeout policies.Micros
	// CommitTimeout is how long a front may try to go on at the target of a Live move,
	// whose request stands still meanwhile. 0 means 2 s.
	CommitTimeout policies.Micros
	// RepromptTimeout is the same by Reprompt, whose request runs on. 0 means 20 s.
	RepromptTimeout policies.Micros
	// MaxDuration bounds a move from its beginning to its Swap. 0 means 60 s.
	MaxDuration policies.Micros
	// ResultRetention is how long the answers to moves that are over are kept, for those
	// who ask again. It exceeds Lease and Longest. 0 means 2 min.
	ResultRetention policies.Micros
	// MaxRounds is how many rounds of blocks are pulled at most before the freeze. Of
	// one that comes in several messages the last one counts.
	// 0 means 3.
	MaxRounds int
	// TailBlocks is how many full blocks are few enough to be left for the manifest.
	// 0 means 4.
	TailBlocks int
}

// maxResults bounds what is kept of moves that are over, in each role.
const maxResults = 4096

// maxCommits bounds the moves that a front handles at once. The others are not
// answered before there is room.
const maxCommits = 4096

// withDefaults fills in the defaults and reports the first bad field as a
// *policies.Violation.
func (c Config) withDefaults() (Config, error) {
	if c.Self == "" {
		return c, &policies.Violation{Subject: "transfer", Invariant: "Self must name the own replica"}
	}
	for _, f := range [...]struct {
		name      string
		value     *policies.Micros
		otherwise policies.Micros
	}{
		{"Retry", &c.RetryInterval, 100 * policies.Millisecond}, {"Silence", &c.PeerTimeout, policies.Second}, {"Lease", &c.ReadyTimeout, 2 * policies.Second},
		{"Frozen", &c.FreezeTimeout, policies.Second}, {"Commit", &c.CommitTimeout, 2 * policies.Second}, {"Recompute", &c.RepromptTimeout, 20 * policies.Second},
		{"Longest", &c.MaxDuration, 60 * policies.Second}, {"Memory", &c.ResultRetention, 120 * policies.Second},
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
	}{{"Rounds", &c.MaxRounds, 3}, {"Tail", &c.TailBlocks, 4}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 0 {
			return c, &policies.Violation{Subject: "transfer", Invariant: f.name + " must be positive, or 0 for its default"}
		}
	}
	switch {
	case c.PeerTimeout < 2*c.RetryInterval:
		return c, &policies.Violation{Subject: "transfer", Invariant: "Silence must be at least twice Retry"}
	case c.ResultRetention < c.ReadyTimeout || c.ResultRetention < c.MaxDuration:
		return c, &policies.Violation{Subject: "transfer", Invariant: "Memory must not be below Lease and Longest"}
	}
	return c, nil
}
