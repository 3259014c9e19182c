package policies

// Sequence is a request as the refiner sees it.
type Sequence struct {
	Input  Tokens // prompt length
	Length Tokens // present length
}

// BoundaryView is the boundary between a stage and the next, and what one replica
// knows of both sides.
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
	Cost       Cost
}

// Refiner proposes where the boundary between two stages should lie.
type Refiner interface {
	// Refine returns the proposal, strictly between Low and High; the boundary
	// in force when it sees no reason to move it. It is pure: the sequences are
	// neither changed nor kept.
	Refine(BoundaryView) Tokens
}
