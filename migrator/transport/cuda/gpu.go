package cuda

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/device/cuda"
	"github.com/cascadeinfer/cascade/migrator/internal/kernel"
)

// The bounds of what is kept on a GPU.
const (
	maxIdleStreams = 4                // idle ones
	idleMapping    = 30 * time.Second // that a mapping which nobody uses is kept
)

// GPUConfig is what a GPU needs.
type GPUConfig struct {
	// Driver is the loaded driver. Required.
	Driver *cuda.Driver
	// Ordinal is the device's number in this process.
	Ordinal int
	// Groups is how many thread groups of 512 a copy has, 1 to 1024. Beside an engine
	// that works at the same time, which takes MPS, they keep as many multiprocessors
	// from it at most. 0 means 16.
	Groups int
	// CopyEngines has the GPU's copy engines move all blocks, and not a kernel: they take
	// no multiprocessors, and a processor has each run of blocks in each region to
	// describe, some 0.5 µs. Sums are a kernel's all the same.
	CopyEngines bool
}

// GPU is one device as this process uses it. It is safe for concurrent use.
type GPU struct {
	config GPUConfig
	info   cuda.Device

	mu            sync.Mutex
	current       *gpuContext // nil until it is needed, and after an error
	closed        bool
	failures      failures // of what was held
	pendingCloses []func() error
	unhealthy     error // why it is not to be trusted, as others say

	pinsMu sync.Mutex // guards pins; who has it waits for nothing
	pins   []*hostPin
}

// gpuContext is all that there is in one context: it lives and ends as one.
type gpuContext struct {
	context                   *cuda.Context
	module                    *cuda.Module
	copy, sum, sumDestination cuda.Kernel
	gather, scatter           cuda.Kernel
	batches                   atomic.Bool // whether many pieces go to the copy engines in one call
	copyEngines               bool        // whether all do

	worked atomic.Bool // some work of a lane was done

	// closeMu is read-locked by who makes calls in the context, and locked to end it.
	closeMu sync.RWMutex
	closed  bool // guarded by gate

	pinMu sync.Mutex // held while the driver pins, which takes milliseconds
	pins  map[*hostPin]*cuda.HostMemory

	mu            sync.Mutex
	idleStreams   []*copyStream
	streams       map[*copyStream]bool // all of them
	mappings      map[mappingKey]*mapping
	allocations   map[*Memory]cuda.Pointer // memory of this process's own
	pendingCloses []func() error           // what could not be closed, and is not the context's
}

// NewGPU looks a device up. Its context is made when it is used first.
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

// Close ends the context and all that is in it. Nothing is to be used afterwards.
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

// withContext runs f in the context of h, or of whichever lives if h is nil. When the
// device has failed for good, the context is ended.
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

var errContextClosed = errors.New("the GPU has failed since, and was opened anew")

// run runs f while the context lives.
func (h *gpuContext) run(f func(*gpuContext) error) error {
	h.closeMu.RLock()
	defer h.closeMu.RUnlock()
	if h.closed {
		return errContextClosed
	}
	return f(h)
}

// currentContext is the context, made where there is none, unless that has failed just now: then
// it fails with a *DownError.
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
		return nil, &DownError{g.config.Ordinal, g.failures.err, g.failures.until}
	}
	h, err := g.openContext()
	if err != nil {
		g.failures.record(err, time.Now(), 0)
		return nil, &DownError{g.config.Ordinal, err, g.failures.until}
	}
	g.current = h
	_ = retryCloses(&g.pendingCloses) // the error was told when it was new
	return h, nil
}

// openContext makes a context with all that every use needs.
func (g *GPU) openContext() (*gpuContext, error) {
	context, err := g.config.Driver.RetainContext(g.config.Ordinal)
	if err != nil {
		return nil, err
	}
	h := &gpuContext{context: context, copyEngines: g.config.CopyEngines, streams: map[*copyStream]bool{}, mappings: map[mappingKey]*mapping{}, allocations: map[*Memory]cuda.Pointer{}, pins: map[*hostPin]*cuda.HostMemory{}}
	h.batches.Store(g.config.Driver.SupportsBatches())
	if h.module, err = context.LoadModule(kernel.PTX); err == nil {
		for name, k := range map[string]*cuda.Kernel{
			kernel.Copy: &h.copy, kernel.Sum: &h.sum, kernel.SumDestination: &h.sumDestination, kernel.Gather: &h.gather, kernel.Scatter: &h.scatter,
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

// closeContext closes all that is in a context, once nobody makes calls in it. No other is
// made before: it would be the same, which the driver counts. why is the error that
// has made it useless, nil for none.
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
		g.failures.record(why, time.Now(), 1)
	}
	// In a context that has failed none of this succeeds except for its end, which
	// closes all that is of the context: the errors would say nothing new.
	for l := range h.streams {
		_ = l.close()
	}
	if why == nil { // otherwise a kernel may be at work on it still
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
	// Only its end is sure to end what was under way, and mappings that are not the
	// context's are not taken from under that.
	err := h.context.Close()
	for _, m := range h.mappings {
		if m.outlivesContext {
			h.pendingCloses = append(h.pendingCloses, m.close)
		}
	}
	g.pendingCloses = append(g.pendingCloses, h.pendingCloses...)
	return errors.Join(err, retryCloses(&g.pendingCloses))
}

// retryCloses closes what could not be closed before, and keeps what cannot be still.
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

// unmapLocked unmaps a mapping that is nobody's any more. mu is held.
func (h *gpuContext) unmapLocked(m *mapping) error {
	if m.outlivesContext {
		return h.closeOrDeferLocked(m.close)
	}
	return m.close()
}

// closeOrDeferLocked closes what is not the context's, now or later. mu is held.
func (h *gpuContext) closeOrDeferLocked(close func() error) error {
	err := close()
	if err != nil {
		h.pendingCloses = append(h.pendingCloses, close)
	}
	return err
}

// unmapIdle unmaps what nobody has used since before.
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

// acquireStream returns an idle lane, or makes one.
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

// releaseStream gives a lane back whose work is done.
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

// mappingKey names a mapping: who offers the pool, and which it is.
type mappingKey struct {
	address string
	id      [16]byte
	own     *Memory
}

// mapping is a pool at an address of this context.
type mapping struct {
	pool  cuda.Pointer // its first byte
	size  int64        // from there to the allocation's end
	close func() error
	// outlivesContext says that the mapping does not end with the context.
	outlivesContext bool
	// persistent says that it ends with its pool, or the context, and not before.
	persistent bool
	users      int
	idleSince  time.Time // when the last user left
}

// acquireMapping finds a mapping, or makes it. It is left by unmap.
func (h *gpuContext) acquireMapping(k mappingKey, open func() (*mapping, error)) (*mapping, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := h.mappings[k]
	if m == nil {
		var err error
		if m, err = open(); err != nil {
			return nil, err
		}
		h.mappings[k] = m
	}
	m.users++
	return m, nil
}

// keepMapping has a mapping stay when nobody uses it.
func (h *gpuContext) keepMapping(m *mapping) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.persistent = true
}

// releaseMapping ends one use.
func (h *gpuContext) releaseMapping(m *mapping, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.users--
	m.idleSince = now
}
