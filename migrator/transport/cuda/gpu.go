package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// maxIdleStreams is how many unused streams are kept.
const maxIdleStreams = 4

// GPUConfig configures a GPU.
type GPUConfig struct {
	// Driver is the loaded driver. Required.
	Driver *cuda.Driver
	// Ordinal is the device's number in this process.
	Ordinal int
	// Groups is the number of thread groups (CTAs) of 512 threads of a copy, 1 to 1024; 0
	// means 16. Beside an engine that runs at the same time, which requires MPS, a copy
	// takes at most as many multiprocessors from it.
	Groups int
	// CopyEngines makes the copy engines of the GPU, instead of a kernel, copy all
	// blocks. They take no multiprocessors, but a processor describes each run of blocks
	// in each region, at about 0.5 µs. Checksums are computed by a kernel in any case.
	CopyEngines bool
}

// GPU is one device as this process uses it. It is safe for concurrent use.
type GPU struct {
	config GPUConfig
	info   cuda.Device

	// Err reads these without mu.
	unhealthy atomic.Pointer[DownError] // set by MarkUnhealthy
	paused    atomic.Pointer[DownError] // set when a failure costs a pause, until there is a context again

	mu            sync.Mutex  // held while contexts are opened and closed, which may wait for a driver that hangs
	current       *gpuContext // nil until the first use, and after an error
	closed        bool
	failures      failures // of earlier contexts
	pendingCloses []func() error

	pinsMu sync.Mutex // guards pins; held only briefly
	pins   []*hostPin
}

// gpuContext is one CUDA context and everything in it, which is closed with it.
type gpuContext struct {
	context                   *cuda.Context
	module                    *cuda.Module
	copy, sum, sumDestination cuda.Kernel
	gather, scatter           cuda.Kernel
	batches                   atomic.Bool // whether the driver copies many pieces in one call
	copyEngines               bool        // whether the copy engines copy all blocks

	worked atomic.Bool // whether a stream has completed some work

	// closeMu is read-locked during calls in the context, and locked to close it.
	closeMu sync.RWMutex
	closed  bool // guarded by gate

	pinMu sync.Mutex // held while the driver pins memory, which takes milliseconds
	pins  map[*hostPin]*cuda.HostMemory

	mu            sync.Mutex
	idleStreams   []*copyStream
	streams       map[*copyStream]bool // including those in use
	mappings      map[mappingKey]*mapping
	allocations   map[*Memory]cuda.Pointer // memory that Allocate made
	pendingCloses []func() error           // closes to be retried, of objects that outlive the context
}

// NewGPU returns a GPU. Its context is made on first use.
func NewGPU(c GPUConfig) (*GPU, error) {
	if c.Driver == nil || c.Ordinal < 0 || c.Groups < 0 || c.Groups > 1024 {
		return nil, fmt.Errorf("gpu: Driver must be set, Ordinal %d ≥ 0, and Groups %d of 0 to 1024", c.Ordinal, c.Groups)
	}
	if c.Groups == 0 {
		c.Groups = 16
	}
	info, err := c.Driver.Device(c.Ordinal)
	if err != nil {
		return nil, fmt.Errorf("gpu %d: %w", c.Ordinal, err)
	}
	return &GPU{config: c, info: info}, nil
}

// Device describes the GPU.
func (g *GPU) Device() cuda.Device { return g.info }

// Close closes the context and everything in it. The GPU must not be used afterwards.
func (g *GPU) Close() error {
	g.mu.Lock()
	g.closed = true
	h := g.current
	g.mu.Unlock()
	if h == nil {
		return nil
	}
	return g.closeContext(h, nil)
}

// withContext runs f in the context h, or in the current context if h is nil. It closes
// the context after an error that makes it useless.
func (g *GPU) withContext(h *gpuContext, f func(*gpuContext) error) error {
	if h == nil {
		var err error
		if h, err = g.currentContext(); err != nil {
			return err
		}
	}
	err := h.run(f)
	if cuda.Sticky(err) {
		return errors.Join(err, g.closeContext(h, err))
	}
	return err
}

var errContextClosed = errors.New("the GPU failed, and its context was closed")

// run runs f unless the context is closed.
func (h *gpuContext) run(f func(*gpuContext) error) error {
	h.closeMu.RLock()
	defer h.closeMu.RUnlock()
	if h.closed {
		return errContextClosed
	}
	return f(h)
}

// currentContext returns the context, and makes it if there is none. It fails with a
// *DownError during the pause after a failure.
func (g *GPU) currentContext() (*gpuContext, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("gpu %d: it is closed", g.config.Ordinal)
	}
	if g.current != nil {
		return g.current, nil
	}
	if time.Now().Before(g.failures.until) {
		return nil, g.paused.Load()
	}
	h, err := g.openContext()
	if err != nil {
		g.recordFailureLocked(err, 0)
		return nil, g.paused.Load()
	}
	g.current = h
	g.paused.Store(nil)
	_ = retryCloses(&g.pendingCloses) // the error was returned when it was new
	return h, nil
}

// openContext makes a context with the kernels.
func (g *GPU) openContext() (*gpuContext, error) {
	context, err := g.config.Driver.RetainContext(g.config.Ordinal)
	if err != nil {
		return nil, err
	}
	h := &gpuContext{context: context, copyEngines: g.config.CopyEngines, streams: map[*copyStream]bool{}, mappings: map[mappingKey]*mapping{}, allocations: map[*Memory]cuda.Pointer{}, pins: map[*hostPin]*cuda.HostMemory{}}
	h.batches.Store(g.config.Driver.SupportsBatches())
	if h.module, err = context.LoadModule(transport.KernelPTX); err == nil {
		for name, k := range map[string]*cuda.Kernel{
			transport.KernelCopy: &h.copy, transport.KernelSum: &h.sum, transport.KernelSumDestination: &h.sumDestination, transport.KernelGather: &h.gather, transport.KernelScatter: &h.scatter,
		} {
			if *k, err = h.module.Kernel(name); err != nil {
				break
			}
		}
	}
	if err != nil {
		if h.module != nil {
			err = errors.Join(err, h.module.Close())
		}
		return nil, errors.Join(err, context.Close())
	}
	return h, nil
}

// closeContext closes everything in a context, when no call is in progress in it. No new
// context is made before: the driver counts references, and would return the same one.
// cause is the error that made the context useless, nil for none.
func (g *GPU) closeContext(h *gpuContext, why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.current == h {
		g.current = nil
	}
	h.closeMu.Lock()
	defer h.closeMu.Unlock()
	if h.closed {
		return nil
	}
	h.closed = true
	if h.worked.Load() {
		g.failures = failures{}
	}
	if why != nil {
		g.recordFailureLocked(why, 1)
	}
	// In a failed context all of these calls fail, and the end of the context releases
	// what is in it: their errors say nothing new.
	for l := range h.streams {
		_ = l.close()
	}
	if why == nil { // after a failure a kernel may still use it
		for _, p := range h.pins {
			_ = p.Close()
		}
	}
	for _, m := range h.mappings {
		if !m.outlivesContext {
			_ = m.close()
		}
	}
	for m, p := range h.allocations {
		m.markLost(h.context, p)
	}
	_ = h.module.Close()
	// Only the end of the context is sure to end the work in progress, and mappings that
	// outlive the context must not be unmapped while that work uses them.
	err := h.context.Close()
	for _, m := range h.mappings {
		if m.outlivesContext {
			h.pendingCloses = append(h.pendingCloses, m.close)
		}
	}
	g.pendingCloses = append(g.pendingCloses, h.pendingCloses...)
	return errors.Join(err, retryCloses(&g.pendingCloses))
}

// retryCloses retries closes that failed before, and keeps those that fail again.
func retryCloses(unshut *[]func() error) (err error) {
	var left []func() error
	for _, close := range *unshut {
		if failed := close(); failed != nil {
			err, left = errors.Join(err, failed), append(left, close)
		}
	}
	*unshut = left
	return err
}

// unmapLocked unmaps a mapping without users. mu is held.
func (h *gpuContext) unmapLocked(m *mapping) error {
	if m.outlivesContext {
		return h.closeOrDeferLocked(m.close)
	}
	return m.close()
}

// closeOrDeferLocked closes an object that outlives the context, and retries later if
// that fails. mu is held.
func (h *gpuContext) closeOrDeferLocked(close func() error) error {
	err := close()
	if err != nil {
		h.pendingCloses = append(h.pendingCloses, close)
	}
	return err
}

// unmapIdle unmaps the mappings that have been unused since before.
func (g *GPU) unmapIdle(before time.Time) {
	g.mu.Lock()
	h := g.current
	g.mu.Unlock()
	if h == nil {
		return
	}
	// A mapping that cannot be unmapped ends with the context.
	_ = g.withContext(h, func(h *gpuContext) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		errs := retryCloses(&h.pendingCloses)
		for k, m := range h.mappings {
			if m.users == 0 && !m.persistent && m.idleSince.Before(before) {
				delete(h.mappings, k)
				errs = errors.Join(errs, h.unmapLocked(m))
			}
		}
		return errs
	})
}

// acquireStream returns an idle stream, or makes one. It is given back by releaseStream.
func (h *gpuContext) acquireStream() (*copyStream, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.idleStreams); n > 0 {
		l := h.idleStreams[n-1]
		h.idleStreams = h.idleStreams[:n-1]
		return l, nil
	}
	l, err := newCopyStream(h)
	if err == nil {
		h.streams[l] = true
	}
	return l, err
}

// releaseStream gives back a stream whose work is done.
func (h *gpuContext) releaseStream(l *copyStream) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.idleStreams) < maxIdleStreams {
		h.idleStreams = append(h.idleStreams, l)
		return nil
	}
	delete(h.streams, l)
	return l.close()
}
