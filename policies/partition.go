package policies

// Workload is the input of a Partitioner: the flow to serve, the cost and capacity
// of the engines, and the limits of a plan. The replicas of one workload are alike.
//
// Invariants, checked by Validate:
//  1. Flow, Cost and Capacity are valid,
//  2. Snapshot is nil, or has one valid batch per bucket (sums finite, not negative) and
//     QoE is valid,
//  3. Replicas is positive,
//  4. Transfer and Limits are valid.
type Workload struct {
	Flow     Flow
	Snapshot []Batch // in-flight requests by bucket of Flow.Edges; nil unless the policy plans on snapshots
	QoE      QoE     // prices the snapshot; not read without one
	Cost     Cost    // prices the flow
	Capacity Capacity
	Replicas int // to divide among the stages; ≥ 1
	Transfer Transfer
	Limits   Limits
}

// Validate reports the first broken invariant, or nil.
func (w Workload) Validate() error {
	for _, err := range [...]error{w.Flow.Validate(), w.Cost.Validate(), w.Capacity.Validate()} {
		if err != nil {
			return &Violation{"workload", "1: " + err.Error()}
		}
	}
	if w.Snapshot != nil && len(w.Snapshot) != len(w.Flow.Edges) {
		return &Violation{"workload", "2: the snapshot must have one batch per bucket"}
	}
	if w.Snapshot != nil {
		if err := w.QoE.Validate(); err != nil {
			return &Violation{"workload", "2: a snapshot needs a QoE model: " + err.Error()}
		}
	}
	for _, b := range w.Snapshot {
		for _, x := range [...]float64{b.N, b.SumI, b.SumI2, b.SumL} {
			if !finite(x) || x < 0 {
				return &Violation{"workload", "2: the snapshot's sums must be finite and not negative"}
			}
		}
	}
	if w.Replicas < 1 {
		return &Violation{"workload", "3: there must be at least one replica to divide"}
	}
	for _, err := range [...]error{w.Transfer.Validate(), w.Limits.Validate()} {
		if err != nil {
			return &Violation{"workload", "4: " + err.Error()}
		}
	}
	return nil
}

// Transfer is the delay that a migration costs: Base + length·PerToken seconds.
//
// Invariant, checked by Validate:
//  1. both are finite and not negative.
type Transfer struct {
	Base     float64 // seconds per migration
	PerToken float64 // seconds per token of KV transferred
}

// Validate reports the broken invariant, or nil.
func (t Transfer) Validate() error {
	for _, x := range [...]float64{t.Base, t.PerToken} {
		if !finite(x) || x < 0 {
			return &Violation{"transfer", "1: seconds per migration and per token must be finite and not negative"}
		}
	}
	return nil
}

// Limits bounds the plans that a Partitioner may propose. The zero value sets no
// limit besides the engines' capacity.
//
// Invariants, checked by Validate:
//  1. Stages is not negative,
//  2. Iteration and Pooling are finite and not negative,
//  3. Utilisation is in [0, 1].
type Limits struct {
	Stages int // most stages; 0 means MaxStages
	// Iteration is the largest predicted iteration time of any stage, in
	// seconds: fairness to the longest class. 0 means none.
	Iteration float64
	// Pooling is β in k ≥ u + β·√u: the headroom of a small stage for bursts. 0
	// means none.
	Pooling float64
	// Utilisation is the largest share of a stage's replicas that its work may
	// occupy, in (0, 1]. 0 means 1 (exclusive).
	Utilisation float64
}

// Validate reports the first broken invariant, or nil.
func (l Limits) Validate() error {
	switch {
	case l.Stages < 0:
		return &Violation{"limits", "1: the number of stages must not be negative"}
	case !finite(l.Iteration) || l.Iteration < 0 || !finite(l.Pooling) || l.Pooling < 0:
		return &Violation{"limits", "2: iteration time and pooling must be finite and not negative"}
	case !(l.Utilisation >= 0 && l.Utilisation <= 1):
		return &Violation{"limits", "3: utilisation must be a share from 0 to 1"}
	}
	return nil
}

// Partition is a proposed division into stages: cuts, replicas per stage and the
// predictions of the cost model. len(Counts) = len(Cuts)+1.
type Partition struct {
	Cuts   []Tokens // interior boundaries, strictly increasing; stage i ends at Cuts[i]
	Counts []int    // replicas of each stage, short to long, each ≥ 1
	Cost   float64  // predicted objective, in the policy's unit
	// OneStage is the same objective with all replicas in one stage; +Inf if one
	// stage cannot serve the workload.
	OneStage float64
	// Iterations is the predicted iteration time of each stage, in seconds; nil if
	// the policy's model predicts none.
	Iterations []float64
	Exact      bool // the policy proved that no partition is better by its model: cheaper, or by partition.Exact with a slack as cheap with fewer stages
}

// Partitioner divides a fleet into length stages. Partition is pure: equal
// workloads give equal partitions. The error is ErrInfeasible if no partition
// meets the limits, or a *Violation for an invalid workload.
type Partitioner interface {
	Partition(Workload) (Partition, error)
}

// ErrInfeasible means that the replicas cannot serve the workload within the
// limits, even undivided. The caller keeps its last plan.
var ErrInfeasible error = infeasible{}

type infeasible struct{}

func (infeasible) Error() string { return "no partition can serve the workload within its limits" }
