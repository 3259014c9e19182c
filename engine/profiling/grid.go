package profiling

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Grid is what is measured. All fields but the last three are required.
type Grid struct {
	// Shortest and Longest bound the prompts, in tokens.
	Shortest policies.Tokens `json:"shortest"`
	Longest  policies.Tokens `json:"longest"`
	// Factor is how much longer a bucket's prompts are than those of the one before, and how much larger a batch
	// is than the one before: the paper's is 2.
	Factor   int             `json:"factor"`
	MaxBatch int             `json:"max_batch"`
	Output   policies.Tokens `json:"output"` // mean number of generated tokens of a request

	// Context is the longest sequence that the engine takes, and KVTokens the size of its KV cache. Cells that
	// exceed them are left out. 0: unknown.
	Context  policies.Tokens `json:"context,omitempty"`
	KVTokens policies.Tokens `json:"kv_tokens,omitempty"`
	// Seed makes lengths and texts repeatable.
	Seed uint64 `json:"seed"`
}

// Validate returns the first problem of a grid, or nil.
func (g Grid) Validate() error {
	switch {
	case g.Shortest < 1 || g.Longest <= g.Shortest || g.Longest > maxTokens:
		return fmt.Errorf("prompt lengths must grow from at least 1 token to at most %d, not %s", maxTokens, policies.LengthRange(g.Shortest, g.Longest))
	case g.Factor < 2 || g.Factor > maxBatch:
		return fmt.Errorf("the factor between buckets is %d; it must be 2 to %d", g.Factor, maxBatch)
	case g.MaxBatch < 1 || g.MaxBatch > maxBatch:
		return fmt.Errorf("the largest batch is %d; it must be 1 to %d", g.MaxBatch, maxBatch)
	case g.Output < 2 || g.Output > maxTokens:
		return fmt.Errorf("the mean output is %d tokens; it must be 2, since the time between tokens is measured, to %d", g.Output, maxTokens)
	}
	if len(g.Cells()) == 0 {
		return fmt.Errorf("no cell fits the engine's context of %d tokens and its KV cache of %d: lower the shortest length or the output", g.Context, g.KVTokens)
	}
	return nil
}

const (
	maxBatch = 4096
	// kvShare is the part of the KV cache that a cell may fill: engines keep some blocks free.
	kvShare = 0.9
)

// Cell is one configuration of the grid: prompts of [Low, High) tokens, Batch of them in flight.
type Cell struct {
	Low   policies.Tokens `json:"low"`
	High  policies.Tokens `json:"high"`
	Batch int             `json:"batch"`
	// Mixed cells have fixed lengths, and one request that is longer than the others: see Prompt.
	Mixed  bool    `json:"mixed,omitempty"`
	Spread float64 `json:"spread,omitempty"`
}

// String describes the cell.
func (c Cell) String() string {
	if c.Mixed {
		return fmt.Sprintf("%d × %d tokens on average, spread %.2g", c.Batch, c.Low, c.Spread)
	}
	return fmt.Sprintf("%d × %s", c.Batch, policies.LengthRange(c.Low, c.High))
}

// Cells returns the cells of the grid, from short prompts to long ones and from small batches to large ones.
func (g Grid) Cells() []Cell {
	var cells []Cell
	longest := g.longest()
	for low := g.Shortest; low < longest; low *= policies.Tokens(g.Factor) {
		high := min(low*policies.Tokens(g.Factor), longest)
		for batch := 1; batch <= g.MaxBatch; batch *= g.Factor {
			if c := (Cell{Low: low, High: high, Batch: batch}); g.fits(batch, (low+high)/2) {
				cells = append(cells, c)
			}
		}
	}
	return cells
}

// longest returns the end of the last bucket.
func (g Grid) longest() policies.Tokens {
	if g.Context > 0 {
		return min(g.Longest, g.Context-2*g.Output)
	}
	return g.Longest
}

// fits reports whether the KV cache holds so many requests of a mean prompt length.
func (g Grid) fits(batch int, prompt policies.Tokens) bool {
	return g.KVTokens == 0 || float64(batch)*float64(prompt+g.Output) <= kvShare*float64(g.KVTokens)
}

// spreads are those of mixed cells. At 0 all lengths are equal, at 0.75 the others have a quarter of the mean.
var spreads = [...]float64{0, 0.25, 0.5, 0.75}

// MixedCells returns cells of one batch size and one sum of lengths, whose lengths differ by more and more: for
// κ. The batch is at most 8, and the longest request of the last cell fits the grid's lengths.
func (g Grid) MixedCells() []Cell {
	batch := min(8, g.MaxBatch)
	if batch < 2 {
		return nil
	}
	// The longest prompt is mean·(1 + (batch−1)·spread).
	mean := policies.Tokens(float64(g.longest()-1) / (1 + float64(batch-1)*spreads[len(spreads)-1]))
	for mean > 0 && !g.fits(batch, mean) {
		mean /= 2
	}
	if mean < 8 {
		return nil
	}
	var cells []Cell
	for _, spread := range spreads {
		cells = append(cells, Cell{Low: mean, High: mean + 1, Batch: batch, Mixed: true, Spread: spread})
	}
	return cells
}

// Prompt returns the length of the next prompt in a slot of a cell, of Batch slots. Lengths are distributed
// evenly on a logarithmic scale, or fixed in a mixed cell: Low·(1 + (Batch−1)·Spread) in slot 0 and
// Low·(1 − Spread) in the others, so that their sum is the same for every spread.
func (c Cell) Prompt(slot int, rng *rand.Rand) policies.Tokens {
	factor := 1 - c.Spread
	switch {
	case c.Mixed && slot == 0:
		factor = 1 + float64(c.Batch-1)*c.Spread
	case !c.Mixed:
		factor = math.Pow(float64(c.High)/float64(c.Low), rng.Float64())
	}
	return max(1, policies.Tokens(float64(c.Low)*factor))
}

// OutputLength returns the number of tokens that the next request generates: mean/2 to 3·mean/2, so that
// requests that began together do not end together.
func (g Grid) OutputLength(rng *rand.Rand) policies.Tokens {
	return max(2, g.Output/2+policies.Tokens(rng.Int64N(int64(g.Output)+1)))
}

// MeasuredIn reports whether one of the logs is the cell's.
func (c Cell) MeasuredIn(done []Log) bool {
	return slices.ContainsFunc(done, func(l Log) bool { return l.Cell == c })
}

// Skip reports whether a cell need not be measured: the engine could not run a batch of no more and no longer
// requests at once. A client that was starved of CPU does not know that.
func (c Cell) Skip(done []Log) bool {
	for _, d := range done {
		if d.Queued() && !d.Starved() && d.Batch <= c.Batch && d.Low <= c.Low {
			return true
		}
	}
	return false
}
