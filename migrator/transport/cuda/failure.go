package cuda

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// The pause before the context of a GPU is made again whose contexts fail one after the
// other; it doubles from firstPause to longestPause.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// A DownError is the error of a GPU that this process cannot use now: it could not be
// opened again after a failure, or was marked unhealthy.
type DownError struct {
	GPU int   // its ordinal
	Err error // the latest reason
	// RetryAt is when the GPU may be tried again; zero if this process does not decide
	// that.
	RetryAt time.Time
}

func (e *DownError) Error() string {
	remedy := "restart this process, or reset the GPU"
	if cuda.HasCode(e.Err, cuda.OutOfMemory) {
		remedy = "leave some hundred MiB of its memory free"
	}
	return fmt.Sprintf("gpu %d is down: %v; if it stays down, %s", e.GPU, e.Err, remedy)
}

func (e *DownError) Unwrap() error { return e.Err }

// failures counts contexts in a row that failed before they did any work. The zero value
// has counted none.
type failures struct {
	n     int
	until time.Time // no context is made before; zero for no pause
	err   error     // of the last failure
}

// record counts a failure. The first free failures in a row cost no pause.
func (f *failures) record(err error, now time.Time, free int) {
	f.n++
	f.err, f.until = err, time.Time{}
	if wait := f.n - free; wait > 0 {
		f.until = now.Add(min(firstPause<<min(wait-1, 6), longestPause))
	}
}

// MarkUnhealthy marks the GPU as unhealthy although it may work: Err returns why until
// MarkUnhealthy(nil).
func (g *GPU) MarkUnhealthy(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unhealthy = why
}

// Err returns why the GPU cannot be used now, as a *DownError, or nil. A GPU that has
// failed once, and was not tried again, is not down.
func (g *GPU) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.unhealthy != nil:
		return &DownError{GPU: g.config.Ordinal, Err: g.unhealthy}
	case g.current == nil && !g.failures.until.IsZero():
		return &DownError{GPU: g.config.Ordinal, Err: g.failures.err, RetryAt: g.failures.until}
	}
	return nil
}

// DeviceErr returns why the pool's GPU cannot be used now. See GPU.Err.
func (m *Memory) DeviceErr() error { return m.gpu.Err() }

// probeBytes is the number of bytes of a pool that CheckDevice reads.
const probeBytes = 4096

// CheckDevice returns why nothing can be copied into or out of the pool now, as a
// *DownError if the GPU is the cause, or nil. It makes the GPU read some of the pool.
func (m *Memory) CheckDevice() error {
	m.gpu.mu.Lock()
	sick := m.gpu.unhealthy
	m.gpu.mu.Unlock()
	if sick != nil {
		return m.gpu.Err()
	}
	size := min(m.size, probeBytes)
	_, err := m.Sums(nil, transport.Layout{Blocks: 1, Regions: []transport.Region{{Stride: size, Bytes: size}}}, []uint32{0})
	if err != nil {
		if down := m.gpu.Err(); down != nil {
			return down
		}
	}
	return err
}
