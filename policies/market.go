package policies

// Micros counts microseconds: a duration, or a time on a monotonic clock. Market
// decisions use integers, so that they are the same on every machine.
type Micros int64

// Common durations.
const (
	Millisecond Micros = 1000
	Second      Micros = 1000 * Millisecond
)

// MigrationCause says why a running request should move to another replica.
type MigrationCause uint8

// The causes. The values are part of the wire format between migrators.
const (
	Growth  MigrationCause = iota + 1 // it outgrew its stage and moves to the stage of its length
	Outlier                           // its replica has far more load than the stage's mean; it stays in the stage
	Drain                             // its replica is draining
	Spill                             // its replica is full; it moves to another one, of its own stage if possible
	Prefill                           // a prefill replica has computed its prompt; it moves to a replica of the stage of its length
	Cheaper                           // it costs less at another replica, by the prices of placement
)

// String names the cause, for tables and metrics.
func (c MigrationCause) String() string {
	if c < Growth || c > Cheaper {
		return "unknown cause"
	}
	return [...]string{Growth: "growth", Outlier: "outlier", Drain: "drain", Spill: "spill", Prefill: "prefill", Cheaper: "cheaper"}[c]
}

// Migration is one running request that should move to another replica.
type Migration struct {
	Request string // unique in the fleet
	Length  Tokens // present length: the KV to transfer
	Cause   MigrationCause
}

// Occupancy is the state of a replica's KV cache, from which it makes its bids. No
// field is negative.
type Occupancy struct {
	Capacity Tokens // KV cache size; 0 while unknown, and then nothing fits
	Held     Tokens // KV in use by requests that run on the replica
	Promised Tokens // KV of requests accepted from clients that do not run yet
	Incoming Tokens // KV reserved for requests won in the market that have not arrived
	// Throughput is the measured rate of all incoming transfers together, in
	// tokens per second; 0 while unknown.
	Throughput Tokens
	// Draining replicas make no bids.
	Draining bool
}

// Load is the KV that the replica holds or has promised to hold.
func (p Occupancy) Load() Tokens { return p.Held + p.Promised + p.Incoming }

// Fits reports whether the replica has room for a request of that length.
func (p Occupancy) Fits(length Tokens) bool {
	return !p.Draining && length <= p.Capacity-p.Load()
}

// Bid is a receiver's answer to an ask, by which a seller offers a request: its
// load, promises included, and the delay after which a transfer
// could start. A bid reserves nothing.
type Bid struct {
	From  ReplicaID
	Load  Tokens
	Start Micros
}

// Quoter makes a receiver's bids (paper, section "Decentralized Load
// (Re)Balancing").
type Quoter interface {
	// Quote returns the bid of a replica with that occupancy for a migration. False
	// means no bid. The caller fills in From and asks only for what fits. Quote is
	// pure.
	Quote(Occupancy, Migration) (Bid, bool)
}

// Selector chooses the winning bid.
type Selector interface {
	// Select returns the index of the winning bid, or −1 for none. The bids are in
	// order of arrival; Select must not change or keep them. It is pure.
	Select([]Bid) int
}

// Detector finds replicas with more than their share of a stage's load.
type Detector interface {
	// Excess returns how many tokens of load a replica should offer to its stage,
	// given its own load and the stage's mean; 0 if it is not an outlier. It is
	// pure.
	Excess(own, mean Tokens) Tokens
}
