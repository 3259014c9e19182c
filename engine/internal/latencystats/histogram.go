package latencystats

import (
	"math"

	"github.com/cascadeinfer/cascade/engine/replay"
)

// Histogram buckets are a factor of 1+2·Error wide: a percentile is off by at most Error.
const (
	Error  = 0.0025
	growth = 1 + 2*Error
	// Times from smallest to 11 days have buckets of their own; shorter ones count as smallest.
	smallest = 1e-7
	buckets  = 6000
)

// histogram counts times in seconds, in logarithmic buckets. The zero value is empty.
type histogram struct {
	counts []uint32 // from bucket first on
	first  int
	n      uint64
	sum    float64
	max    float64
}

func (h *histogram) add(t float64) {
	i := 0
	if t > smallest {
		i = min(int(math.Log(t/smallest)/math.Log(growth)), buckets-1)
	}
	h.reach(i, i)
	h.counts[i-h.first]++
	h.n++
	h.sum += t
	h.max = math.Max(h.max, t)
}

// reach makes room for the buckets low … high.
func (h *histogram) reach(low, high int) {
	if len(h.counts) == 0 {
		h.first = low
	}
	if low < h.first {
		h.counts = append(make([]uint32, h.first-low), h.counts...)
		h.first = low
	}
	for high >= h.first+len(h.counts) {
		h.counts = append(h.counts, 0)
	}
}

// merge adds the counts of another histogram.
func (h *histogram) merge(o *histogram) {
	if o.n == 0 {
		return
	}
	h.reach(o.first, o.first+len(o.counts)-1)
	for i, n := range o.counts {
		h.counts[o.first+i-h.first] += n
	}
	h.n += o.n
	h.sum += o.sum
	h.max = math.Max(h.max, o.max)
}

// summary returns the figures; percentiles are nearest-rank, in the middle of their buckets.
func (h *histogram) summary() replay.Summary {
	if h.n == 0 {
		return replay.Summary{}
	}
	s := replay.Summary{Count: int(h.n), Mean: h.sum / float64(h.n), Max: h.max, Percentiles: make([]float64, 101)}
	bucket, below := 0, uint64(0)
	for p := range s.Percentiles {
		rank := max(1, uint64(math.Ceil(float64(p)/100*float64(h.n))))
		for below+uint64(h.counts[bucket]) < rank {
			below += uint64(h.counts[bucket])
			bucket++
		}
		s.Percentiles[p] = math.Min(h.max, smallest*math.Exp((float64(h.first+bucket)+0.5)*math.Log(growth)))
	}
	s.P50, s.P95, s.P99 = s.Percentiles[50], s.Percentiles[95], s.Percentiles[99]
	return s
}
