package policies

import "math"

// LatencyBuckets is the number of buckets of LatencyCounts. Bucket i has durations up to 1 ms × √2^i, and the last
// one all beyond about ten minutes. They are the same everywhere, so that the counts of replicas can be added, and so
// narrow that a quantile is off by a fifth at most.
const LatencyBuckets = 40

const (
	firstBucketEnd     = Micros(1000)
	bucketsPerDoubling = 2
)

// LatencyCounts is the number of durations in each bucket: front ends report with it how fast clients were served.
// Counts never shrink, so that the difference of two has the durations between two moments.
type LatencyCounts [LatencyBuckets]uint64

// Add counts a duration.
func (c *LatencyCounts) Add(d Micros) {
	i := 0
	if d > firstBucketEnd {
		i = min(int(math.Ceil(bucketsPerDoubling*math.Log2(float64(d)/float64(firstBucketEnd)))), LatencyBuckets-1)
	}
	c[i]++
}

// Plus returns the sum of c and o.
func (c LatencyCounts) Plus(o LatencyCounts) LatencyCounts {
	for i := range c {
		c[i] += o[i]
	}
	return c
}

// Since returns the durations counted after earlier. If the counter has restarted since, it returns all of c.
func (c LatencyCounts) Since(earlier LatencyCounts) LatencyCounts {
	out := c
	for i := range out {
		if c[i] < earlier[i] {
			return c
		}
		out[i] -= earlier[i]
	}
	return out
}

// Total returns how many durations were counted.
func (c LatencyCounts) Total() (n uint64) {
	for _, v := range c {
		n += v
	}
	return n
}

// Quantile returns the q-quantile in seconds, interpolated within its bucket, or 0 if nothing was counted.
func (c LatencyCounts) Quantile(q float64) float64 {
	rank, below := q*float64(c.Total()), 0.0
	for i, n := range c {
		if n == 0 || below+float64(n) < rank {
			below += float64(n)
			continue
		}
		part := 1.0
		if i > 0 {
			part = (rank - below) / float64(n)
		}
		return float64(firstBucketEnd) / 1e6 * math.Exp2((float64(i)-1+part)/bucketsPerDoubling)
	}
	return 0
}
