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
}

// record counts a failure. The first free failures in a row cost no pause.
func (f *failures) record(now time.Time, free int) {
	f.n++
	f.until = time.Time{}
	if wait := f.n - free; wait > 0 {
		f.until = now.Add(min(firstPause<<min(wait-1, 6), longestPause))
	}
}

// MarkUnhealthy marks the GPU as unhealthy although it may work: Err returns why until
// MarkUnhealthy(nil).
func (g *GPU) MarkUnhealthy(why error) {
	if why == nil {
		g.unhealthy.Store(nil)
		return
	}
	g.unhealthy.Store(&DownError{GPU: g.config.Ordinal, Err: why})
}

// Err returns why the GPU cannot be used now, as a *DownError, or nil. A GPU that has
// failed once, and was not tried again, is not down. It waits for no call of the driver.
func (g *GPU) Err() error {
	for _, down := range []*DownError{g.unhealthy.Load(), g.paused.Load()} {
		if down != nil {
			return down
		}
	}
	return nil
}

// recordFailureLocked counts a failure, of which the first free ones cost no pause. mu is held.
func (g *GPU) recordFailureLocked(why error, free int) {
	g.failures.record(time.Now(), free)
	if !g.failures.until.IsZero() {
		g.paused.Store(&DownError{GPU: g.config.Ordinal, Err: why, RetryAt: g.failures.until})
	}
}

// DeviceErr returns why the pool's GPU cannot be used now. See GPU.Err.
func (m *Memory) DeviceErr() error { return m.gpu.Err() }

// probeBytes is the number of bytes of a pool that CheckDevice reads.
const probeBytes = 4096

// CheckDevice returns why nothing can be copied into or out of the pool now, as a
// *DownError if the GPU is the cause, or nil. It makes the GPU read some of the pool.
func (m *Memory) CheckDevice() error {
	if sick := m.gpu.unhealthy.Load(); sick != nil {
		return sick
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
