// Package headroom keeps some of this process's file descriptors and memory free for its
// control path: health checks, reports, orders, and the streams that it has.
//
// A daemon asks [Monitor.Admit] for every new request and refuses it on an error, and its
// clients' listeners come from [Monitor.Listener]. What else the process opens is not
// asked for: that is what the reserve is kept for.
//
// Without a reserve, the request that takes the last descriptor also takes the ability to
// see that the engine lives, and to place elsewhere what does not fit.
package headroom

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cascadeinfer/cascade/xds/loadreport"
)

const (
	// window is the time between two counts of the open descriptors. What was admitted
	// in it and in the one before may still be about to open its own.
	window = 50 * time.Millisecond
	// collectInterval is the time between two garbage collections that a shortage of memory
	// asks for: the size of the live heap is that of the last collection, and a process that
	// refuses all requests allocates nothing that would begin the next one.
	collectInterval = time.Second
	// shownFor is how long after a refusal the shortage is shown: a shortage that comes and
	// goes is one problem.
	shownFor = 5 * time.Second
	// Share of the descriptors that is reserved, and its bounds.
	reserveShare = 8
	minReserve   = 64
	maxReserve   = 1024
	// usableMemory is the part of the memory limit, in percent, that live objects may
	// take: beyond it the garbage collector runs without pause.
	usableMemory = 80
	// Limits below these are worth a warning at start.
	lowDescriptors = 8192
	lowMemory      = 256 << 20
)

// The errors of Admit.
var (
	ErrDescriptors = errors.New("few file descriptors are left; raise the limit (ulimit -n, LimitNOFILE=)")
	ErrMemory      = errors.New("little memory is left; raise the limit of the container or GOMEMLIMIT")
)

// Monitor decides whether a process has room for another request. Its methods are safe
// for concurrent use. A nil Monitor admits everything.
type Monitor struct {
	limits  Limits
	reserve int
	log     *slog.Logger
	now     func() time.Time
	open    func() int   // open descriptors
	live    func() int64 // bytes of live objects
	collect func()       // begins a garbage collection, and does not wait for it

	mu       sync.Mutex
	counted  time.Time // when used and heap were read
	used     int
	heap     int64
	admitted [2]int // since counted, and in the window before
	full     error  // what the last request was refused for; nil if it was admitted
	short    error  // what anything was last refused for, at shortAt
	shortAt  time.Time
	cleaned  time.Time // when collect was last called
	refused  map[error]float64
}

// New returns a Monitor, and logs limits that are low.
func New(l Limits, log *slog.Logger) *Monitor {
	m := &Monitor{limits: l, log: log, now: time.Now, open: openDescriptors, live: liveMemory, collect: func() { go runtime.GC() }, refused: map[error]float64{ErrDescriptors: 0, ErrMemory: 0}}
	m.reserve = min(max(l.Descriptors/reserveShare, minReserve), maxReserve, l.Descriptors/2)
	if l.Descriptors > 0 && l.Descriptors < lowDescriptors {
		log.Warn("file descriptor limit is low; raise it with ulimit -n or LimitNOFILE=", "limit", l.Descriptors, "reserved", m.reserve)
	}
	if l.Memory > 0 && l.Memory < lowMemory {
		log.Warn("memory limit is low; raise the limit of the container or GOMEMLIMIT", "bytes", l.Memory)
	}
	return m
}

// Admit returns nil if there is room for another request, which it counts, and else the
// reason to refuse it.
func (m *Monitor) Admit() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.roomLocked(m.reserve)
	if err == nil {
		m.admitted[0]++
	} else {
		m.noteRefusedLocked(err)
	}
	if (err == nil) != (m.full == nil) {
		m.logLocked(err)
	}
	m.full = err
	return err
}

func (m *Monitor) logLocked(err error) {
	at := []any{"descriptors", m.used, "limit", m.limits.Descriptors, "heap_bytes", m.heap, "heap_limit_bytes", m.limits.Memory}
	if err != nil {
		m.log.Warn("new requests are refused", append(at, "reason", err)...)
	} else {
		m.log.Info("new requests are accepted again", at...)
	}
}

// Err returns why a request would be refused now; nil if it would not.
func (m *Monitor) Err() error {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.roomLocked(m.reserve)
}

func (m *Monitor) noteRefusedLocked(err error) {
	m.refused[err]++
	m.short, m.shortAt = err, m.now()
}

// Problems returns the shortage because of which something is refused now, or was a moment ago;
// nil for none.
func (m *Monitor) Problems() []loadreport.Problem {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.roomLocked(m.reserve)
	if err == nil && m.now().Sub(m.shortAt) < shownFor {
		err = m.short
	}
	switch err {
	case ErrDescriptors:
		return []loadreport.Problem{{Kind: loadreport.ProblemDescriptors, Text: fmt.Sprintf("new requests are refused: %v; %d of %d are open", err, m.used, m.limits.Descriptors)}}
	case ErrMemory:
		return []loadreport.Problem{{Kind: loadreport.ProblemMemory, Text: fmt.Sprintf("new requests are refused: %v; %d of %d MiB are in use", err, m.heap>>20, m.limits.Memory>>20)}}
	}
	return nil
}

// roomLocked returns nil if, besides the reserve, something is left.
func (m *Monitor) roomLocked(reserve int) error {
	if now := m.now(); now.Sub(m.counted) >= window || now.Before(m.counted) {
		if m.admitted[1] = 0; now.Sub(m.counted) < 2*window {
			m.admitted[1] = m.admitted[0]
		}
		m.counted, m.used, m.heap, m.admitted[0] = now, m.open(), m.live(), 0
	}
	switch {
	case m.limits.Descriptors > 0 && m.used+m.admitted[0]+m.admitted[1] >= m.limits.Descriptors-reserve:
		return ErrDescriptors
	case m.limits.Memory > 0 && m.heap >= m.limits.Memory/100*usableMemory:
		if m.counted.Sub(m.cleaned) >= collectInterval {
			m.cleaned = m.counted
			m.collect()
		}
		return ErrMemory
	}
	return nil
}

// Listener returns l without the connections for which there is no descriptor to spare:
// they are closed at once. The first half of the reserve accepts connections, whose
// requests are then refused with an answer.
func (m *Monitor) Listener(l net.Listener) net.Listener {
	if m == nil || l == nil {
		return l
	}
	return &listener{l, m}
}

type listener struct {
	net.Listener
	monitor *Monitor
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.monitor.admitConn() {
			return c, err
		}
		c.Close()
		l.monitor.log.Warn("connection closed: few file descriptors are left", "listener", l.Addr().String())
	}
}

// admitConn reports whether a connection that was accepted may stay.
func (m *Monitor) admitConn() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.roomLocked(m.reserve/2) == ErrDescriptors {
		m.noteRefusedLocked(ErrDescriptors)
		return false
	}
	m.admitted[0]++
	return true
}

var refusals = prometheus.NewDesc("cascade_headroom_refusals_total", "New requests and connections refused because the process had little of a resource left.", []string{"resource"}, nil)

var _ prometheus.Collector = (*Monitor)(nil)

// Describe implements prometheus.Collector.
func (m *Monitor) Describe(c chan<- *prometheus.Desc) { c <- refusals }

// Collect implements prometheus.Collector.
func (m *Monitor) Collect(c chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c <- prometheus.MustNewConstMetric(refusals, prometheus.CounterValue, m.refused[ErrDescriptors], "descriptors")
	c <- prometheus.MustNewConstMetric(refusals, prometheus.CounterValue, m.refused[ErrMemory], "memory")
}
