package balance

import "sync/atomic"

// Load counts the requests of a host, for load reports. It is safe for concurrent use.
type Load struct {
	active                    atomic.Int64
	issued, succeeded, failed atomic.Uint64
}

// LoadSample is what a Load has counted: the requests in progress, and the others since the last
// sample.
type LoadSample struct {
	Active, Issued, Succeeded, Failed uint64
}

// Begin counts a request that is sent to the host.
func (l *Load) Begin() {
	l.active.Add(1)
	l.issued.Add(1)
}

// End counts the end of a request: whether the host answered it, other than with a server error.
func (l *Load) End(succeeded bool) {
	l.active.Add(-1)
	if succeeded {
		l.succeeded.Add(1)
	} else {
		l.failed.Add(1)
	}
}

// Abandon ends a request that says nothing about the host: its client has left, or this process
// could not send it.
func (l *Load) Abandon() { l.active.Add(-1) }

// Loads returns the samples of the hosts that have requests, or had some since the last call.
func (b *Balancer) Loads() map[*Host]LoadSample {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := make(map[*Host]LoadSample)
	for _, h := range b.hosts {
		l := &h.Load
		s := LoadSample{uint64(max(l.active.Load(), 0)), l.issued.Swap(0), l.succeeded.Swap(0), l.failed.Swap(0)}
		if s != (LoadSample{}) {
			out[h] = s
		}
	}
	return out
}
