package engineinfo

import "time"

// Limits of how often metrics are read.
const (
	interval = time.Second // between two reads
	// MaxInterval is the longest time between two reads: after failures, or of a slow engine.
	MaxInterval = 30 * time.Second
	// readShare is the largest share of the time, as a divisor, that reads may take: an
	// engine renders its metrics on the loop that serves its requests.
	readShare = 20
)

// Pace decides when the metrics of an engine are read. The zero value reads at once. Its
// times are those since any fixed moment.
type Pace struct {
	next     time.Duration
	failures uint
}

// Due reports whether it is time for a read.
func (p *Pace) Due(now time.Duration) bool { return now >= p.next }

// Done records a read that ended now and took that long.
func (p *Pace) Done(now, took time.Duration, err error) {
	pause := max(interval, readShare*took)
	if err == nil {
		p.failures = 0
	} else {
		p.failures = min(p.failures+1, 8)
		pause = max(pause, interval<<p.failures)
	}
	p.next = now + min(pause, MaxInterval)
}

// Reset makes a read due at once: the engine has started.
func (p *Pace) Reset() { *p = Pace{} }
