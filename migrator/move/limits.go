package move

import (
	"cmp"

	"github.com/cascadeinfer/cascade/policies"
)

// Limits configures a Machine. Durations are wall-clock time: they bound faults, not
// work, and do not shrink with an emulated fleet's speed.
type Limits struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// PeerTimeout is how long the other side of a migration may be silent before
	// Commit; at least 200 ms. 0 means 1 s.
	PeerTimeout policies.Micros
	// ReadyTimeout is how long a ready target keeps its blocks without hearing from
	// its source; at most 2 min. 0 means 2 s.
	ReadyTimeout policies.Micros
	// FreezeTimeout bounds the time from the freeze to Commit. 0 means 1 s.
	FreezeTimeout policies.Micros
	// CommitTimeout is how long a front end may try to continue a stream at the target
	// of a Live migration, whose request is frozen meanwhile. 0 means 2 s.
	CommitTimeout policies.Micros
	// TailBlocks is the number of remaining full blocks at or below which the request
	// is frozen and the rest is sent in the manifest. 0 means 4.
	TailBlocks int
}

const (
	// retryInterval is the time after which an unanswered message is sent again. It
	// exceeds a round trip.
	retryInterval = 100 * policies.Millisecond
	// repromptTimeout is Limits.CommitTimeout for Reprompt, whose request keeps running.
	repromptTimeout = 20 * policies.Second
	// maxDuration bounds a migration from its start to Commit.
	maxDuration = 60 * policies.Second
	// resultRetention is how long the results of finished migrations are kept for peers
	// that ask again: at least maxDuration and Limits.ReadyTimeout.
	resultRetention = 120 * policies.Second
	// maxRounds is the maximum number of rounds of blocks that are pulled before the
	// freeze. A round that is split into several messages counts once.
	maxRounds = 3
	// maxResults bounds the retained results of finished migrations, per role.
	maxResults = 4096
	// maxCommits bounds the commits that a front end handles at once. Further ones get
	// no answer until there is room.
	maxCommits = 4096
)

// withDefaults fills in the defaults and returns the first invalid field as a
// *policies.Violation.
func (c Limits) withDefaults() (Limits, error) {
	c.PeerTimeout, c.ReadyTimeout = cmp.Or(c.PeerTimeout, policies.Second), cmp.Or(c.ReadyTimeout, 2*policies.Second)
	c.FreezeTimeout, c.CommitTimeout = cmp.Or(c.FreezeTimeout, policies.Second), cmp.Or(c.CommitTimeout, 2*policies.Second)
	c.TailBlocks = cmp.Or(c.TailBlocks, 4)
	invalid := ""
	switch {
	case c.Self == "":
		invalid = "Self must name this replica"
	case c.PeerTimeout < 2*retryInterval:
		invalid = "PeerTimeout must be at least 200 ms, or 0 for its default"
	case c.ReadyTimeout < 0 || c.ReadyTimeout > resultRetention:
		invalid = "ReadyTimeout must be positive and at most 2 min, or 0 for its default"
	case c.FreezeTimeout < 0 || c.CommitTimeout < 0 || c.TailBlocks < 0:
		invalid = "FreezeTimeout, CommitTimeout and TailBlocks must be positive, or 0 for their defaults"
	default:
		return c, nil
	}
	return c, &policies.Violation{Subject: "move", Invariant: invalid}
}
