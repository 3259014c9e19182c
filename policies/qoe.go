package policies

// Batch holds the sums F1…F4 of the paper's eq. 1 over the requests of a batch.
// The zero value is the empty batch.
type Batch struct {
	N     float64 // F1: number of requests; fractional when a set is divided evenly
	SumI  float64 // F2: Σ input tokens
	SumI2 float64 // F3: Σ squared input tokens
	SumL  float64 // F4: Σ present lengths
}

// Add puts one request into the batch.
func (b Batch) Add(input, length Tokens) Batch {
	i := float64(input)
	return Batch{b.N + 1, b.SumI + i, b.SumI2 + float64(i*i), b.SumL + float64(length)}
}

// Plus merges two batches.
func (b Batch) Plus(o Batch) Batch {
	return Batch{b.N + o.N, b.SumI + o.SumI, b.SumI2 + o.SumI2, b.SumL + o.SumL}
}

// Divide returns the k-th part of the batch, evenly divided. k must be positive.
func (b Batch) Divide(k int) Batch {
	f := 1 / float64(k)
	return Batch{b.N * f, b.SumI * f, b.SumI2 * f, b.SumL * f}
}

// RequestQoE is the paper's Q_j, in seconds: what one request experiences in
// batch b (prefill delay plus one iteration; lower is better). It is the same
// for every request of the batch.
func (c Cost) RequestQoE(b Batch) float64 {
	return c.D0 + float64(c.D1*b.N) + float64(c.D2*b.SumI) + float64(c.D3*b.SumI2) + float64(c.D4*b.SumL)
}

// BatchQoE is the paper's Q^B = n·Q_1 (eq. 1), in request-seconds.
func (c Cost) BatchQoE(b Batch) float64 { return b.N * c.RequestQoE(b) }
