package replay

import (
	"cmp"
	"math"
	"slices"
)

// Histogram buckets are a factor of 1+2·Error wide: a percentile is off by at most Error.
const (
	Error  = 0.0025
	growth = 1 + 2*Error
	// Times from smallest to 11 days have buckets of their own; shorter ones count as smallest.
	smallest = 1e-7
	buckets  = 6000
)

// histogram counts times in seconds, in logarithmic buckets. The zero value is empty. Of the hundreds of
// histograms of a run most have few times, far apart: only buckets that have some take memory.
type histogram struct {
	cells []cell // in order of the buckets
	n     uint64
	sum   float64
	max   float64
}

// cell is the times of one bucket.
type cell struct {
	bucket uint16
	count  uint32
}

var _ = [1]struct{}{}[buckets>>16]

func (h *histogram) add(t float64) {
	i := 0
	if t > smallest {
		i = min(int(math.Log(t/smallest)/math.Log(growth)), buckets-1)
	}
	at, found := slices.BinarySearchFunc(h.cells, uint16(i), func(c cell, bucket uint16) int { return cmp.Compare(c.bucket, bucket) })
	if !found {
		h.cells = slices.Insert(h.cells, at, cell{bucket: uint16(i)})
	}
	h.cells[at].count++
	h.n++
	h.sum += t
	h.max = math.Max(h.max, t)
}

// merge returns a histogram of the times of all the given ones.
func merge(all []*histogram) (out histogram) {
	var counts [buckets]uint32
	for _, h := range all {
		for _, c := range h.cells {
			counts[c.bucket] += c.count
		}
		out.n += h.n
		out.sum += h.sum
		out.max = math.Max(out.max, h.max)
	}
	for i, n := range counts {
		if n > 0 {
			out.cells = append(out.cells, cell{uint16(i), n})
		}
	}
	return out
}

// summariseHistograms returns the figures of histograms together; percentiles are nearest-rank, in the middle of
// their buckets.
func summariseHistograms(all []*histogram) Summary {
	h := merge(all)
	if h.n == 0 {
		return Summary{}
	}
	s := Summary{Count: int(h.n), Mean: h.sum / float64(h.n), Max: h.max, Percentiles: make([]float64, 101)}
	next, below := 0, uint64(0) // times below the next cell
	for p := range s.Percentiles {
		rank := max(1, uint64(math.Ceil(float64(p)/100*float64(h.n))))
		for below+uint64(h.cells[next].count) < rank {
			below += uint64(h.cells[next].count)
			next++
		}
		s.Percentiles[p] = math.Min(h.max, smallest*math.Exp((float64(h.cells[next].bucket)+0.5)*math.Log(growth)))
	}
	s.P50, s.P95, s.P99 = s.Percentiles[50], s.Percentiles[95], s.Percentiles[99]
	return s
}
