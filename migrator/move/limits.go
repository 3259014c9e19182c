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
	// Commit: at least 2 × retryInterval, which is not checked. 0 means 1 s.
	PeerTimeout policies.Micros
	// ReadyTimeout is how long a ready target keeps its blocks without hearing from
	// its source: at most resultRetention, which is not checked. 0 means 2 s.
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

// withDefaults fills in the defaults.
func (c Limits) withDefaults() Limits {
	c.PeerTimeout, c.ReadyTimeout = cmp.Or(c.PeerTimeout, policies.Second), cmp.Or(c.ReadyTimeout, 2*policies.Second)
	c.FreezeTimeout, c.CommitTimeout = cmp.Or(c.FreezeTimeout, policies.Second), cmp.Or(c.CommitTimeout, 2*policies.Second)
	c.TailBlocks = cmp.Or(c.TailBlocks, 4)
	return c
}
