package policies

// Micros counts microseconds: a duration, or a time on a clock that does not
// go back. Market decisions are made in integers, so that they are the same on
// every machine.
type Micros int64

// Common durations.
const (
	Millisecond Micros = 1000
	Second      Micros = 1000 * Millisecond
)

// MigrationCause says why a running request is to change its replica.
type MigrationCause uint8

// The causes. Values are part of what replicas tell each other.
const (
	Growth  MigrationCause = iota + 1 // it outgrew its stage: to the next one
	Outlier                           // its replica carries far more than the stage's mean: within the stage
	Drain                             // its replica is to be emptied
	Spill                             // its stage is full: to the next one
)

// String names the cause, for tables and metrics.
func (c MigrationCause) String() string {
	switch c {
	case Growth:
		return "growth"
	case Outlier:
		return "outlier"
	case Drain:
		return "drain"
	case Spill:
		return "spill"
	}
	return "unknown cause"
}

// Migration is one running request that is to change its replica.
type Migration struct {
	Request string // unique in the fleet
	Length  Tokens // present length: the KV that has to move
	Cause   MigrationCause
}

// Occupancy is what a replica knows of itself when it is asked for a bid. No
// field is negative.
type Occupancy struct {
	Capacity Tokens // KV cache size; 0 while unknown: nothing fits
	Held     Tokens // KV in use by requests that run here
	Promised Tokens // accepted from clients and not yet running
	Incoming Tokens // won in the market and not yet here: reserved
	// Throughput is the measured rate of incoming transfers, all slots
	// together, in tokens per second; 0 while unknown.
	Throughput Tokens
	// Draining replicas win nothing.
	Draining bool
}

// Load is all that the replica carries or has promised to carry.
func (p Occupancy) Load() Tokens { return p.Held + p.Promised + p.Incoming }

// Fits reports whether the replica can take a request of that length on.
func (p Occupancy) Fits(length Tokens) bool {
	return !p.Draining && length <= p.Capacity-p.Load()
}

// Bid is a receiver's answer to an ask: what it carries, what it has promised
// included, and when a transfer could start, counted from now. A bid reserves
// nothing.
type Bid struct {
	From  ReplicaID
	Load  Tokens
	Start Micros
}

// Quoter makes a receiver's bids (paper, section "Decentralized Load
// (Re)Balancing").
type Quoter interface {
	// Quote prices a hand-over to a replica in that position. False means no
	// bid. The caller fills in From and asks only for what fits. Quote is pure.
	Quote(Occupancy, Migration) (Bid, bool)
}

// Selector picks the winner of an ask.
type Selector interface {
	// Select returns the index of the winning bid, or −1 to take none. The bids
	// are in the order in which they arrived; Select must not change or keep
	// them. It is pure.
	Select([]Bid) int
}

// Detector finds replicas that carry more than their share.
type Detector interface {
	// Excess returns how many tokens of load a replica should offer to its
	// stage, given what it carries and the mean over the stage; 0 for a replica
	// that is no outlier. It is pure.
	Excess(own, mean Tokens) Tokens
}
