package cost

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// AttentionCase is an assumption about what a decode batch of unequal lengths costs beyond the sum of
// its lengths. Every claim that rests on one should be shown for all of them.
type AttentionCase int

// The cases. Profile.Kappa is ignored in all of them.
const (
	// SumOnly: attention costs what the sum of the lengths costs.
	SumOnly AttentionCase = iota
	// TenPercent: attention of a batch of two and more takes 1.1 times as long, as vidur assumes.
	TenPercent
	// MeasuredSkew: attention takes the share of the way from the sum of the lengths to n times the
	// longest that a SkewTable measured.
	MeasuredSkew
	// Stress: a given share of that way, for any batch. It is no measurement; it shows what would follow.
	Stress
)

// attentionCases are the names, in the order of the constants.
var attentionCases = [...]string{"sum", "ten-percent", "measured", "stress"}

// attentionMeanings say what a batch of unequal lengths costs, in the same order.
var attentionMeanings = [...]string{
	"attention costs what the sum of a batch's lengths costs",
	"attention takes 1.1 times as long in every batch of two or more",
	"attention takes as long as was measured for batches of unequal lengths",
	"attention costs a share, half unless given, of the way to that of a batch in which all are as long as the longest",
}

// AttentionCases lists the names of the cases.
func AttentionCases() []string { return attentionCases[:] }

// ParseAttentionCase returns the case of a name; the error lists the names.
func ParseAttentionCase(name string) (AttentionCase, error) {
	if i := slices.Index(attentionCases[:], name); i >= 0 {
		return AttentionCase(i), nil
	}
	return 0, fmt.Errorf("attention case %q: must be one of %q", name, attentionCases)
}

// Meaning says what the case prices, in a clause.
func (c AttentionCase) Meaning() string { return attentionMeanings[c] }

// String returns the name of the case.
func (c AttentionCase) String() string { return attentionCases[c] }

const tenPercent = 0.1

// DefaultStress is the share of Stress unless one is given.
const DefaultStress = 0.5

// Attention prices the iterations of a profile in a case. One goroutine uses it.
type Attention struct {
	profile Profile
	kind    AttentionCase
	stress  float64
	table   *SkewTable
	batches Batches
}

// Batches counts the iterations that decoded two sequences or more.
type Batches struct {
	Priced uint64 `json:"priced"`
	// Outside is how many of them were outside the domain of the SkewTable: the nearest point of it
	// was taken.
	Outside uint64 `json:"outside"`
}

// NewAttention returns the prices of a case. stress is the share of Stress, from 0 to 1; table is required for
// MeasuredSkew.
func NewAttention(p Profile, c AttentionCase, stress float64, table *SkewTable) (*Attention, error) {
	if c == MeasuredSkew && table == nil {
		return nil, errors.New("attention case measured: needs a table of measured skew")
	}
	p.Kappa = 0
	return &Attention{profile: p, kind: c, stress: stress, table: table}, nil
}

// Batches returns what was priced so far.
func (a *Attention) Batches() Batches { return a.batches }

// Seconds is Profile.Seconds in the case.
func (a *Attention) Seconds(it Iteration) float64 {
	t := a.profile.Seconds(it)
	if it.Decodes < 2 {
		return t
	}
	a.batches.Priced++
	held, most := float64(it.Held), float64(it.Longest)*float64(it.Decodes)
	switch a.kind {
	case TenPercent:
		t += a.profile.D4 * held * tenPercent
	case MeasuredSkew:
		alpha, inside := a.table.alpha(it.Decodes, float64(it.Longest), held/most)
		if !inside {
			a.batches.Outside++
		}
		t += a.profile.D4 * alpha * (most - held)
	case Stress:
		t += a.profile.D4 * a.stress * (most - held)
	}
	return t
}

// SkewTable is measured skew: decode batches of unequal lengths between those whose lengths are all the
// mean and those whose lengths are all the longest.
type SkewTable struct {
	sequences []float64    // log2 of the batch sizes, ascending
	longest   []float64    // log2 of the longest lengths, ascending
	cells     [][]skewCell // by batch size and longest length
}

// skewCell holds alpha by the mean over the longest length, ascending.
type skewCell []skewPoint

type skewPoint struct{ mean, alpha float64 }

// ReadSkew reads a table of LLMServingSim's format: of its rows, those of regime "pure" (no prompts in
// the iteration). alpha is the share of the way from t_mean_us to t_max_us that t_skew_us lies; of rows
// with equal lengths the mean is taken, and negative ones, which are noise, are 0.
func ReadSkew(r io.Reader) (*SkewTable, error) {
	type key struct{ n, big, mean float64 }
	sums, counts := map[key]float64{}, map[key]float64{}
	err := ReadTable("skew", r, func(t *Table) {
		if t.Text("regime") != "pure" {
			return
		}
		k := key{t.Number("n"), t.Number("kv_big"), t.Number("kv_mean")}
		mean, skewed, most := t.Number("t_mean_us"), t.Number("t_skew_us"), t.Number("t_max_us")
		switch {
		case !(k.n >= 2) || !(k.mean > 0) || !(k.big >= k.mean):
			t.Fail(": n must be at least 2, and kv_big at least kv_mean")
		case !(mean > 0) || !(skewed > 0) || !(most > 0):
			t.Fail(": times must be positive")
		case most > mean:
			sums[k] += math.Max(0, (skewed-mean)/(most-mean))
			counts[k]++
		}
	}, "regime", "n", "kv_big", "kv_mean", "t_mean_us", "t_skew_us", "t_max_us")
	if err != nil {
		return nil, err
	}
	if len(sums) == 0 {
		return nil, errors.New(`skew table: no row of regime "pure"`)
	}
	s := &SkewTable{}
	for k := range sums {
		s.sequences, s.longest = append(s.sequences, math.Log2(k.n)), append(s.longest, math.Log2(k.big))
	}
	s.sequences, s.longest = sortedSet(s.sequences), sortedSet(s.longest)
	s.cells = make([][]skewCell, len(s.sequences))
	for i := range s.cells {
		s.cells[i] = make([]skewCell, len(s.longest))
	}
	for k, sum := range sums {
		i, _ := slices.BinarySearch(s.sequences, math.Log2(k.n))
		j, _ := slices.BinarySearch(s.longest, math.Log2(k.big))
		s.cells[i][j] = append(s.cells[i][j], skewPoint{k.mean / k.big, sum / counts[k]})
	}
	// Interpolation needs a grid: a length that some batch size lacks is left out.
	for j := len(s.longest) - 1; j >= 0; j-- {
		if slices.ContainsFunc(s.cells, func(row []skewCell) bool { return len(row[j]) == 0 }) {
			s.longest = slices.Delete(s.longest, j, j+1)
			for i := range s.cells {
				s.cells[i] = slices.Delete(s.cells[i], j, j+1)
			}
		}
	}
	if len(s.longest) == 0 {
		return nil, errors.New("skew table: no longest length (kv_big) that was measured with every batch size")
	}
	for _, row := range s.cells {
		for _, cell := range row {
			slices.SortFunc(cell, func(a, b skewPoint) int { return cmp.Compare(a.mean, b.mean) })
		}
	}
	return s, nil
}

func sortedSet(values []float64) []float64 {
	slices.Sort(values)
	return slices.Compact(values)
}

// alpha interpolates: linearly in the logarithms of the batch's size and longest length, and in its mean
// over its longest length. Outside the table it takes the nearest point and returns false.
func (s *SkewTable) alpha(n int, longest, mean float64) (float64, bool) {
	i, x, insideN := locate(s.sequences, math.Log2(float64(n)))
	j, y, insideL := locate(s.longest, math.Log2(longest))
	inside := insideN && insideL
	at := func(i, j int) float64 {
		a, ok := s.cells[i][j].at(mean)
		inside = inside && ok
		return a
	}
	low := at(i, j)
	if y > 0 {
		low += y * (at(i, j+1) - low)
	}
	if x == 0 {
		return low, inside
	}
	high := at(i+1, j)
	if y > 0 {
		high += y * (at(i+1, j+1) - high)
	}
	return low + x*(high-low), inside
}

// at interpolates in a cell.
func (c skewCell) at(mean float64) (float64, bool) {
	last := len(c) - 1
	switch {
	case mean <= c[0].mean:
		return c[0].alpha, mean == c[0].mean
	case mean >= c[last].mean:
		// Equal lengths have no skew, whatever alpha is.
		return c[last].alpha, mean == c[last].mean || mean >= 1
	}
	i := 1
	for c[i].mean < mean {
		i++
	}
	a, b := c[i-1], c[i]
	return a.alpha + (mean-a.mean)/(b.mean-a.mean)*(b.alpha-a.alpha), true
}

// locate returns the index of the last value at or below v, and how far v is towards the next.
func locate(values []float64, v float64) (index int, share float64, inside bool) {
	last := len(values) - 1
	switch {
	case v < values[0]:
		return 0, 0, false
	case v >= values[last]:
		return last, 0, v == values[last]
	}
	i := 0
	for values[i+1] <= v {
		i++
	}
	return i, (v - values[i]) / (values[i+1] - values[i]), true
}
