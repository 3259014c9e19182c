package transfer

import "github.com/cascadeinfer/cascade/policies"

// Config configures a Machine. Durations are wall-clock time: they bound faults, not
// work, and do not shrink with an emulated fleet's speed.
type Config struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// RetryInterval is the time after which an unanswered message is sent again. It
	// exceeds a round trip. 0 means 100 ms.
	RetryInterval policies.Micros
	// PeerTimeout is how long the other side of a migration may be silent before
	// Commit; at least twice RetryInterval. 0 means 1 s.
	PeerTimeout policies.Micros
	// ReadyTimeout is how long a ready target keeps its blocks without hearing from
	// its source. 0 means 2 s.
	ReadyTimeout policies.Micros
	// FreezeTimeout bounds the time from the freeze to Commit. 0 means 1 s.
	FreezeTimeout policies.Micros
	// CommitTimeout is how long a front end may try to continue a stream at the target
	// of a Live migration, whose request is frozen meanwhile. 0 means 2 s.
	CommitTimeout policies.Micros
	// RepromptTimeout is the same for Reprompt, whose request keeps running. 0 means 20 s.
	RepromptTimeout policies.Micros
	// MaxDuration bounds a migration from its start to Commit. 0 means 60 s.
	MaxDuration policies.Micros
	// ResultRetention is how long the results of finished migrations are kept for peers
	// that ask again. It is at least ReadyTimeout and MaxDuration. 0 means 2 min.
	ResultRetention policies.Micros
	// MaxRounds is the maximum number of rounds of blocks that are pulled before the
	// freeze. A round that is split into several messages counts once. 0 means 3.
	MaxRounds int
	// TailBlocks is the number of remaining full blocks at or below which the request
	// is frozen and the rest is sent in the manifest. 0 means 4.
	TailBlocks int
}

// maxResults bounds the retained results of finished migrations, per role.
const maxResults = 4096

// maxCommits bounds the commits that a front end handles at once. Further ones get no
// answer until there is room.
const maxCommits = 4096

// withDefaults fills in the defaults and returns the first invalid field as a
// *policies.Violation.
func (c Config) withDefaults() (Config, error) {
	if c.Self == "" {
		return c, &policies.Violation{Subject: "transfer", Invariant: "Self must name this replica"}
	}
	for _, f := range [...]struct {
		name      string
		value     *policies.Micros
		otherwise policies.Micros
	}{
		{"RetryInterval", &c.RetryInterval, 100 * policies.Millisecond}, {"PeerTimeout", &c.PeerTimeout, policies.Second}, {"ReadyTimeout", &c.ReadyTimeout, 2 * policies.Second},
		{"FreezeTimeout", &c.FreezeTimeout, policies.Second}, {"CommitTimeout", &c.CommitTimeout, 2 * policies.Second}, {"RepromptTimeout", &c.RepromptTimeout, 20 * policies.Second},
		{"MaxDuration", &c.MaxDuration, 60 * policies.Second}, {"ResultRetention", &c.ResultRetention, 120 * policies.Second},
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
	}{{"MaxRounds", &c.MaxRounds, 3}, {"TailBlocks", &c.TailBlocks, 4}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
		if *f.value < 0 {
			return c, &policies.Violation{Subject: "transfer", Invariant: f.name + " must be positive, or 0 for its default"}
		}
	}
	switch {
	case c.PeerTimeout < 2*c.RetryInterval:
		return c, &policies.Violation{Subject: "transfer", Invariant: "PeerTimeout must be at least twice RetryInterval"}
	case c.ResultRetention < c.ReadyTimeout || c.ResultRetention < c.MaxDuration:
		return c, &policies.Violation{Subject: "transfer", Invariant: "ResultRetention must be at least ReadyTimeout and MaxDuration"}
	}
	return c, nil
}
