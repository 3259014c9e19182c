package policies

import "slices"

// Flow is the work that arrives at a fleet or a replica, per second, by length
// bucket. Bucket b holds lengths in [Edges[b], Edges[b+1]); the last one is open.
// Plans are made from flows because, unlike in-flight counts, flows do not depend
// on the plan in force (RATIONALE.md, "Why flows instead of snapshots?").
//
// Invariants, checked by Validate:
//  1. Edges is not empty, starts at 0 and increases strictly,
//  2. every other slice is as long as Edges,
//  3. every rate is finite and not negative.
type Flow struct {
	Edges    []Tokens
	Arrivals []float64 // requests/s by input length
	Tokens   []float64 // φ: tokens generated per second by sequences of these lengths
	Reads    []float64 // ψ: KV tokens read per second to generate them
	Prefill  []float64 // uncached prompt tokens per second, by input length: Σ (I − cached)
	Prefill2 []float64 // their squares: Σ (I² − cached²) per second
	// Weight is ν: Σ 1/O over the tokens of finished requests, where O is the
	// request's output length. Modules may weigh iteration time by it, for normalised latency.
	Weight []float64
	// Crossings[b] counts requests per second that grow from below Edges[b] to it.
	Crossings []float64
	Seen      uint64 // requests counted since the counters started, without forgetting
}

// NewFlow returns a zero flow over the edges, which it keeps.
func NewFlow(edges []Tokens) Flow {
	n := len(edges)
	cells := make([]float64, 7*n)
	cut := func(i int) []float64 { return cells[i*n : (i+1)*n : (i+1)*n] }
	return Flow{Edges: edges, Arrivals: cut(0), Tokens: cut(1), Reads: cut(2), Prefill: cut(3), Prefill2: cut(4), Weight: cut(5), Crossings: cut(6)}
}

// Columns lists the rate slices, in declaration order.
func (f Flow) Columns() [7][]float64 {
	return [7][]float64{f.Arrivals, f.Tokens, f.Reads, f.Prefill, f.Prefill2, f.Weight, f.Crossings}
}

// Validate reports the first broken invariant, or nil.
func (f Flow) Validate() error {
	if len(f.Edges) == 0 || f.Edges[0] != 0 {
		return &Violation{"flow", "1: edges must start at 0"}
	}
	for b := 1; b < len(f.Edges); b++ {
		if f.Edges[b] <= f.Edges[b-1] {
			return &Violation{"flow edge " + f.Edges[b].String(), "1: edges must increase strictly"}
		}
	}
	for _, c := range f.Columns() {
		if len(c) != len(f.Edges) {
			return &Violation{"flow", "2: every column must have one cell per edge"}
		}
		for _, x := range c {
			if !finite(x) || x < 0 {
				return &Violation{"flow", "3: rates must be finite and not negative"}
			}
		}
	}
	return nil
}

// Plus adds two flows over the same edges; it reports false, and the first
// flow, when the edges differ.
func (f Flow) Plus(o Flow) (Flow, bool) {
	if !slices.Equal(f.Edges, o.Edges) {
		return f, false
	}
	sum := NewFlow(f.Edges)
	fc, oc := f.Columns(), o.Columns()
	for i, c := range sum.Columns() {
		for b := range c {
			c[b] = fc[i][b] + oc[i][b]
		}
	}
	sum.Seen = f.Seen + o.Seen
	return sum, true
}

// BucketEdges returns the bucket edges for lengths up to limit: 0, 16 and so on,
// with perOctave buckets (4 to 8 is useful) per doubling, and no edge above limit.
// perOctave below 1 counts as 1.
func BucketEdges(limit Tokens, perOctave int) []Tokens {
	perOctave = max(perOctave, 1)
	edges := []Tokens{0}
	// 16 is the first geometric edge: shorter lengths do not differ in cost.
	for base := Tokens(16); base <= limit; base *= 2 {
		for i := range perOctave {
			// Approximates base·2^(i/perOctave) in integers: linear steps inside an
			// octave differ by at most 6 % from geometric ones.
			e := base + base*Tokens(i)/Tokens(perOctave)
			if e > limit {
				break
			}
			if e > edges[len(edges)-1] {
				edges = append(edges, e)
			}
		}
		if base > Unbounded/2 {
			break
		}
	}
	return edges
}

// BucketOf returns the index of the bucket that holds length t.
func BucketOf(edges []Tokens, t Tokens) int {
	b, found := slices.BinarySearch(edges, t)
	if !found {
		b--
	}
	return max(b, 0)
}
