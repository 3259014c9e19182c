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

// Scale multiplies the number of requests by f.
func (b Batch) Scale(f float64) Batch { return Batch{b.N * f, b.SumI * f, b.SumI2 * f, b.SumL * f} }

// Divide returns the k-th part of the batch, evenly divided. k must be positive.
func (b Batch) Divide(k int) Batch { return b.Scale(1 / float64(k)) }

// QoE holds the coefficients D0…D4 of the paper's eq. 1: a regression of the normalised
// latency of requests (seconds from arrival to the last token, divided by the number of
// output tokens) on the batch that they ran in. D2 and D3 therefore spread a prompt's
// prefill over the output, whereas those of Cost are the seconds of the prefill itself.
//
// Invariants, checked by Validate:
//  1. every coefficient is finite and not negative,
//  2. at least one is positive: the zero value means that there is no model.
type QoE struct {
	D0 float64 // seconds per output token, independent of the batch
	D1 float64 // seconds per output token and request of the batch
	D2 float64 // seconds per output token and input token of the batch
	D3 float64 // seconds per output token and squared input token of the batch
	D4 float64 // seconds per output token and token of present length in the batch
}

// Validate reports the first broken invariant, or nil.
func (q QoE) Validate() error {
	for _, d := range [...]float64{q.D0, q.D1, q.D2, q.D3, q.D4} {
		if !finite(d) || d < 0 {
			return &Violation{"QoE", "1: D0…D4 must be finite and not negative"}
		}
	}
	if q == (QoE{}) {
		return &Violation{"QoE", "2: at least one of D0…D4 must be positive"}
	}
	return nil
}

// Scale multiplies every time by f: the model of an engine that is 1/f times as fast.
func (q QoE) Scale(f float64) QoE {
	return QoE{D0: q.D0 * f, D1: q.D1 * f, D2: q.D2 * f, D3: q.D3 * f, D4: q.D4 * f}
}

// OfRequest is the paper's Q_j, the normalised latency that a request of batch b
// experiences, in seconds per output token (lower is better). It is the same for every
// request of the batch.
func (q QoE) OfRequest(b Batch) float64 {
	return q.D0 + float64(q.D1*b.N) + float64(q.D2*b.SumI) + float64(q.D3*b.SumI2) + float64(q.D4*b.SumL)
}

// OfBatch is the paper's Q^B = n·Q_1 (eq. 1): the normalised latencies of all requests.
func (q QoE) OfBatch(b Batch) float64 { return b.N * q.OfRequest(b) }
