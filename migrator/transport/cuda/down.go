package cuda

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// How long a GPU is left alone whose contexts fail one after the other; it doubles
// from the first to the longest.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// A DownError says that a GPU is of no use to this process for now: it could not be
// opened again after it had failed, or somebody who watches it says so.
type DownError struct {
	GPU int   // its number
	Err error // the latest reason
	// RetryAt is when it may be tried again; zero where that is not this process's to say.
	RetryAt time.Time
}

func (e *DownError) Error() string {
	todo := "start this process again, or reset the GPU"
	if cuda.HasCode(e.Err, cuda.OutOfMemory) {
		todo = "leave it some hundred MiB of memory"
	}
	return fmt.Sprintf("gpu %d is down: %v; if it stays so, %s", e.GPU, e.Err, todo)
}

func (e *DownError) Unwrap() error { return e.Err }

// failures are contexts in a row that failed before they did any work. The zero value
// is none.
type failures struct {
	n     int
	until time.Time // none is made before; zero: at once
	err   error     // of the last one
}

// record counts a fault. So many in a row cost no pause.
func (f *failures) record(err error, now time.Time, free int) {
	f.n++
	f.err, f.until = err, time.Time{}
	if wait := f.n - free; wait > 0 {
		f.until = now.Add(min(firstPause<<min(wait-1, 6), longestPause))
	}
}

// MarkUnhealthy says why the GPU is not to be trusted, though it may do its work: Down has
// that until Condemn(nil).
func (g *GPU) MarkUnhealthy(why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unhealthy = why
}

// Err says why the GPU is of no use now, as a *DownError, or nil. One that has failed
// once, and was not tried again, is not down.
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

// DeviceErr says why the pool's GPU is of no use now; see GPU.Down.
func (m *Memory) DeviceErr() error { return m.gpu.Err() }

// probeBytes is how much CheckDevice reads of a pool, in bytes.
const probeBytes = 4096

// CheckDevice says why nothing can be copied into or out of the pool now, as a *DownError
// where that is the GPU's fault, or nil. It has the GPU read some of the pool.
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
