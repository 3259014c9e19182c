package policies

// Cost is the iteration model of an engine: the coefficients of its iteration and
// prefill time, in seconds, and the attention penalty for unequal lengths in one batch.
// What requests experience is another model, QoE. An iteration that decodes n sequences
// of total length ΣL and prefills uncached prompt parts takes about
//
//	D0 + D1·n + D2·ΣI + D3·ΣI² + D4·(ΣL + Kappa·n·(Lmax − Lmean)/n)
//
// Invariants, checked by Validate:
//  1. D0 > 0 (without a fixed cost per iteration, batching gains nothing),
//  2. D1…D4 and Kappa are finite and not negative.
type Cost struct {
	D0 float64 // seconds per iteration, independent of the batch
	D1 float64 // seconds per decoding sequence per iteration
	D2 float64 // seconds per uncached prompt token
	D3 float64 // seconds per squared prompt token (uncached part: I² − cached²)
	D4 float64 // seconds per KV token attended to per iteration
	// Kappa weights D4·(Lmax − Lmean), the extra attention time of a batch of
	// unequal lengths. 0 if the kernel balances unequal lengths itself.
	Kappa float64
}

// Validate reports the first broken invariant, or nil.
func (c Cost) Validate() error {
	if !(c.D0 > 0) || !finite(c.D0) {
		return &Violation{"cost", "1: D0 must be a positive number of seconds"}
	}
	for _, d := range [...]float64{c.D1, c.D2, c.D3, c.D4, c.Kappa} {
		if !finite(d) || d < 0 {
			return &Violation{"cost", "2: D1…D4 and Kappa must be finite and not negative"}
		}
	}
	return nil
}

// Scale multiplies every time by f: the cost of an engine that is 1/f times as
// fast. Kappa is a ratio and does not change.
func (c Cost) Scale(f float64) Cost {
	return Cost{D0: c.D0 * f, D1: c.D1 * f, D2: c.D2 * f, D3: c.D3 * f, D4: c.D4 * f, Kappa: c.Kappa}
}

// Capacity is what one replica can hold and transfer.
//
// Invariants, checked by Validate:
//  1. KV and Batch are positive,
//  2. TransferRate is not negative.
type Capacity struct {
	KV    Tokens // KV cache size, in tokens
	Batch int    // sequences that can run at once
	// TransferRate is how many migrations a replica can send per second, and receive at the
	// same time, besides what its links carry (Transfer.PerToken); 0 means that no limit is known,
	// as for the replicas of a fleet file.
	TransferRate float64
}

// Validate reports the first broken invariant, or nil.
func (c Capacity) Validate() error {
	switch {
	case c.KV <= 0 || c.Batch <= 0:
		return &Violation{"capacity", "1: KV tokens and batch size must be positive"}
	case !finite(c.TransferRate) || c.TransferRate < 0:
		return &Violation{"capacity", "2: the transfer rate must be finite and not negative"}
	}
	return nil
}

// finite reports whether x is neither infinite nor NaN, without package math: x−x
// is 0 only for finite x.
func finite(x float64) bool { return x-x == 0 }
