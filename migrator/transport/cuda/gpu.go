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
	maxLanes    = 4                // idle ones
	idleMapping = 30 * time.Second // that a mapping which nobody uses is kept
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
	// Engines has the GPU's copy engines move all blocks, and not a kernel: they take
	// no multiprocessors, and a processor has each run of blocks in each region to
	// describe, some 0.5 µs. Sums are a kernel's all the same.
	Engines bool
}

// GPU is one device as this process uses it. It is safe for concurrent use.
type GPU struct {
	config GPUConfig
	info   cuda.Device

	mu     sync.Mutex
	held   *hold // nil until it is needed, and after an error
	closed bool
	faults faults // of what was held
	unshut []func() error
	sick   error // why it is not to be trusted, as others say

	noting sync.Mutex // guards pins; who has it waits for nothing
	pins   []*pin
}

// hold is all that there is in one context: it lives and ends as one.
type hold struct {
	context             *cuda.Context
	module              *cuda.Module
	copy, sum, sumOfDst cuda.Kernel
	gather, scatter     cuda.Kernel
	batches             atomic.Bool // whether many pieces go to the copy engines in one call
	engines             bool        // whether all do

	worked atomic.Bool // some work of a lane was done

	// gate is read-locked by who makes calls in the context, and locked to end it.
	gate sync.RWMutex
	over bool // guarded by gate

	pinning sync.Mutex // held while the driver pins, which takes milliseconds
	pins    map[*pin]*cuda.Host

	mu       sync.Mutex
	idle     []*lane
	lanes    map[*lane]bool // all of them
	mappings map[key]*mapping
	made     map[*Memory]cuda.Pointer // memory of this process's own
	unshut   []func() error           // what could not be closed, and is not the context's
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
	h := g.held
	g.mu.Unlock()
	if h == nil {
		return nil
	}
	return g.end(h, nil)
}

// use runs f in the context of h, or of whichever lives if h is nil. When the
// device has failed for good, the context is ended.
func (g *GPU) use(h *hold, f func(*hold) error) error {
	if h == nil {
		var err error
		if h, err = g.live(); err != nil {
			return err
		}
	}
	err := h.use(f)
	if cuda.Sticky(err) {
		return errors.Join(err, g.end(h, err))
	}
	return err
}

var errOver = errors.New("the GPU has failed since, and was opened anew")

// use runs f while the context lives.
func (h *hold) use(f func(*hold) error) error {
	h.gate.RLock()
	defer h.gate.RUnlock()
	if h.over {
		return errOver
	}
	return f(h)
}

// live is the context, made where there is none, unless that has failed just now: then
// it fails with a *DownError.
func (g *GPU) live() (*hold, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil, fmt.Errorf("gpu %d: it is closed", g.config.Ordinal)
	}
	if g.held != nil {
		return g.held, nil
	}
	if time.Now().Before(g.faults.until) {
		return nil, &DownError{g.config.Ordinal, g.faults.err, g.faults.until}
	}
	h, err := g.open()
	if err != nil {
		g.faults.add(err, time.Now(), 0)
		return nil, &DownError{g.config.Ordinal, err, g.faults.until}
	}
	g.held = h
	_ = again(&g.unshut) // the error was told when it was new
	return h, nil
}

// open makes a context with all that every use needs.
func (g *GPU) open() (*hold, error) {
	context, err := g.config.Driver.Retain(g.config.Ordinal)
	if err != nil {
		return nil, err
	}
	h := &hold{context: context, engines: g.config.Engines, lanes: map[*lane]bool{}, mappings: map[key]*mapping{}, made: map[*Memory]cuda.Pointer{}, pins: map[*pin]*cuda.Host{}}
	h.batches.Store(g.config.Driver.Batches())
	if h.module, err = context.Load(kernel.PTX); err == nil {
		for name, k := range map[string]*cuda.Kernel{
			kernel.Copy: &h.copy, kernel.Sum: &h.sum, kernel.SumDestination: &h.sumOfDst, kernel.Gather: &h.gather, kernel.Scatter: &h.scatter,
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

// end closes all that is in a context, once nobody makes calls in it. No other is
// made before: it would be the same, which the driver counts. why is the error that
// has made it useless, nil for none.
func (g *GPU) end(h *hold, why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == h {
		g.held = nil
	}
	h.gate.Lock()
	defer h.gate.Unlock()
	if h.over {
		return nil
	}
	h.over = true
	if h.worked.Load() {
		g.faults = faults{}
	}
	if why != nil {
		g.faults.add(why, time.Now(), 1)
	}
	// In a context that has failed none of this succeeds except for its end, which
	// closes all that is of the context: the errors would say nothing new.
	for l := range h.lanes {
		_ = l.close()
	}
	if why == nil { // otherwise a kernel may be at work on it still
		for _, p := range h.pins {
			_ = p.Close()
		}
	}
	for _, m := range h.mappings {
		if !m.outlives {
			_ = m.close()
		}
	}
	for m, p := range h.made {
		m.lose(h.context, p)
	}
	_ = h.module.Close()
	// Only its end is sure to end what was under way, and mappings that are not the
	// context's are not taken from under that.
	err := h.context.Close()
	for _, m := range h.mappings {
		if m.outlives {
			h.unshut = append(h.unshut, m.close)
		}
	}
	g.unshut = append(g.unshut, h.unshut...)
	return errors.Join(err, again(&g.unshut))
}

// again closes what could not be closed before, and keeps what cannot be still.
func again(unshut *[]func() error) (err error) {
	var left []func() error
	for _, close := range *unshut {
		if failed := close(); failed != nil {
			err, left = errors.Join(err, failed), append(left, close)
		}
	}
	*unshut = left
	return err
}

// end unmaps a mapping that is nobody's any more. mu is held.
func (h *hold) end(m *mapping) error {
	if m.outlives {
		return h.shut(m.close)
	}
	return m.close()
}

// shut closes what is not the context's, now or later. mu is held.
func (h *hold) shut(close func() error) error {
	err := close()
	if err != nil {
		h.unshut = append(h.unshut, close)
	}
	return err
}

// unmapIdle unmaps what nobody has used since before.
func (g *GPU) unmapIdle(before time.Time) {
	g.mu.Lock()
	h := g.held
	g.mu.Unlock()
	if h == nil {
		return
	}
	// A mapping that cannot be unmapped ends with the context.
	_ = g.use(h, func(h *hold) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		errs := again(&h.unshut)
		for k, m := range h.mappings {
			if m.users == 0 && !m.kept && m.left.Before(before) {
				delete(h.mappings, k)
				errs = errors.Join(errs, h.end(m))
			}
		}
		return errs
	})
}

// lane returns an idle lane, or makes one.
func (h *hold) lane() (*lane, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.idle); n > 0 {
		l := h.idle[n-1]
		h.idle = h.idle[:n-1]
		return l, nil
	}
	l, err := newLane(h)
	if err == nil {
		h.lanes[l] = true
	}
	return l, err
}

// leave gives a lane back whose work is done.
func (h *hold) leave(l *lane) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.idle) < maxLanes {
		h.idle = append(h.idle, l)
		return nil
	}
	delete(h.lanes, l)
	return l.close()
}

// key names a mapping: who offers the pool, and which it is.
type key struct {
	address string
	id      [16]byte
	own     *Memory
}

// mapping is a pool at an address of this context.
type mapping struct {
	pool  cuda.Pointer // its first byte
	size  int64        // from there to the allocation's end
	close func() error
	// outlives says that the mapping does not end with the context.
	outlives bool
	// kept says that it ends with its pool, or the context, and not before.
	kept  bool
	users int
	left  time.Time // when the last user left
}

// mapped finds a mapping, or makes it. It is left by unmap.
func (h *hold) mapped(k key, open func() (*mapping, error)) (*mapping, error) {
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

// keep has a mapping stay when nobody uses it.
func (h *hold) keep(m *mapping) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.kept = true
}

// unmap ends one use.
func (h *hold) unmap(m *mapping, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m.users--
	m.left = now
}
