package policies

// Workload is everything a Partitioner may know: the flow to serve, what the
// engines cost and hold, and the limits a plan must keep. Replicas of one
// workload are alike.
type Workload struct {
	Flow     Flow
	Snapshot []Batch // in-flight requests by bucket of Flow.Edges; nil unless the policy plans on snapshots
	Cost     Cost
	Capacity Capacity
	Replicas int // how many there are to divide; ≥ 1
	Transfer Transfer
	Limits   Limits
}

// Transfer prices the hand-over of a running request: Base + length·PerToken
// seconds of delay.
type Transfer struct {
	Base     float64 // seconds per hand-over
	PerToken float64 // seconds per token of KV moved
}

// Limits bound the plans that a Partitioner may propose. The zero value has
// no limit beyond what the engines can hold.
type Limits struct {
	Stages int // most stages; 0 means MaxStages
	// Iteration is the largest predicted iteration time of any stage, in
	// seconds: fairness to the longest class. 0 means none.
	Iteration float64
	// Pooling is β in k ≥ u + β·√u: the head room a small stage needs against
	// bursts. 0 means none.
	Pooling float64
	// Utilisation is the largest share of a stage's replicas that its work may
	// fill, in (0, 1]. 0 means 1 (exclusive).
	Utilisation float64
}

// Partition is a proposal: cuts, replicas per stage and what the model
// predicts. len(Counts) = len(Cuts)+1.
type Partition struct {
	Cuts   []Tokens // interior boundaries, strictly growing; stage i ends at Cuts[i]
	Counts []int    // replicas of each stage, short to long, each ≥ 1
	Cost   float64  // predicted objective; its unit is the policy's
	// OneStage is the same objective with all replicas in one stage, +Inf when
	// one stage cannot carry the workload.
	OneStage float64
	// Iterations predicts each stage's iteration time, in seconds; nil when
	// the policy's model has none.
	Iterations []float64
	Exact      bool // the policy proved that no better partition of its model exists
}

// Partitioner divides a fleet into length stages. Partition is pure: equal
// workloads give equal partitions. The error is ErrInfeasible when no
// partition keeps the limits, or a *Violation for an invalid workload.
type Partitioner interface {
	Partition(Workload) (Partition, error)
}

// ErrInfeasible says that the workload exceeds what the replicas can carry
// under the limits, even undivided. The caller keeps its last plan.
var ErrInfeasible error = infeasible{}

type infeasible struct{}

func (infeasible) Error() string { return "no partition carries the workload within its limits" }
