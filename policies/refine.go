package policies

// Sequence is a running request, as a Refiner sees it.
type Sequence struct {
	Input  Tokens // prompt length
	Length Tokens // present length
}

// BoundaryView is the boundary between a stage and the next one, with what one
// replica knows about both sides.
//
// Invariants, which the caller keeps:
//  1. Low < Boundary < High,
//  2. Peers and Successors are at least 1.
type BoundaryView struct {
	Boundary   Tokens     // in force: the end of the own stage
	Low, High  Tokens     // start of the own stage, end of the next; High may be Unbounded
	Local      []Sequence // requests of the own replica
	Next       []Sequence // requests of all replicas of the next stage
	Peers      int        // replicas of the own stage
	Successors int        // replicas of the next stage
	QoE        QoE        // prices both sides
}

// Refiner proposes where the boundary between two stages should lie.
type Refiner interface {
	// Refine returns the proposed boundary, strictly between Low and High; it is the
	// boundary in force if there is no reason to move it. It is pure: it neither
	// changes nor keeps the sequences.
	Refine(BoundaryView) Tokens
}
