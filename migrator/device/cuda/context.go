package cuda

import (
	"sync/atomic"
	"unsafe"
)

// Context is a device's primary context, retained: what this process does on it.
// It costs some hundred MiB of device memory.
type Context struct {
	driver *Driver
	device uint64
	rdma   uint64 // 1 where allocations of its device can be made for NICs
	handle uintptr
	closed atomic.Bool
}

// RetainContext makes a device's primary context, or counts it up.
func (d *Driver) RetainContext(ordinal int) (*Context, error) {
	dev, err := d.handle(ordinal)
	if err != nil {
		return nil, err
	}
	rdma, err := d.attribute(dev, attrRDMA)
	if err != nil {
		return nil, err
	}
	v := words{1: dev}
	if err := d.do(cuDevicePrimaryCtxRetain, 0, &v, nil); err != nil {
		return nil, err
	}
	return &Context{driver: d, device: dev, rdma: uint64(rdma), handle: uintptr(v[0])}, nil
}

// Close gives the context back. When the last user has, it ends, and with it all
// that was made in it except for exported memory. More calls do nothing.
func (c *Context) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.driver.do(cuDevicePrimaryCtxRelease, 0, &words{c.device}, nil)
}

// do calls a function with the context current.
func (c *Context) do(f call, v *words, buf unsafe.Pointer) error {
	return c.driver.do(f, c.handle, v, buf)
}

// Stream is work in order.
type Stream struct {
	context *Context
	handle  uint64
	closed  atomic.Bool
}

// NewLowPriorityStream makes a stream of the lowest priority: an engine's own work goes
// first. It does not wait for the legacy stream.
func (c *Context) NewLowPriorityStream() (*Stream, error) {
	var v words
	if err := c.do(cuCtxGetStreamPriorityRange, &v, nil); err != nil {
		return nil, err
	}
	v = words{1: uint64(int32(v[0]))}
	if err := c.do(cuStreamCreateWithPriority, &v, nil); err != nil {
		return nil, err
	}
	return &Stream{context: c, handle: v[0]}, nil
}

// Wait returns when all that was submitted is done. It cannot be cut short.
func (s *Stream) Wait() error { return s.context.do(cuStreamSynchronize, &words{s.handle}, nil) }

// Close destroys the stream when its work is done; it does not wait for that. More
// calls do nothing.
func (s *Stream) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	return s.context.do(cuStreamDestroy, &words{s.handle}, nil)
}

// Event is a moment in a stream.
type Event struct {
	context *Context
	handle  uint64
	closed  atomic.Bool
}

// Kinds of events.
const (
	// Untimed events cost less; a thread that waits for one sleeps.
	Untimed = 3
	// Timed events can be subtracted from each other.
	Timed = 1
)

// NewEvent makes an event of a kind.
func (c *Context) NewEvent(kind int) (*Event, error) {
	v := words{1: uint64(kind)}
	if err := c.do(cuEventCreate, &v, nil); err != nil {
		return nil, err
	}
	return &Event{context: c, handle: v[0]}, nil
}

// Record has the event happen when all that was submitted to s before is done.
func (e *Event) Record(s *Stream) error {
	return e.context.do(cuEventRecord, &words{e.handle, s.handle}, nil)
}

// Done reports whether the event has happened; it makes no error of a no.
func (e *Event) Done() (bool, error) {
	c := e.context
	code := c.driver.functions.call(cuEventQuery, c.handle, &words{e.handle}, nil)
	if code == 0 || Code(code) == NotReady {
		return code == 0, nil
	}
	return false, c.driver.newError(cuEventQuery, code)
}

// Wait returns when the event has happened. It cannot be cut short.
func (e *Event) Wait() error { return e.context.do(cuEventSynchronize, &words{e.handle}, nil) }

// Since is the time between two Timed events that have happened, in milliseconds.
func (e *Event) Since(earlier *Event) (float32, error) {
	v := words{1: earlier.handle, 2: e.handle}
	err := e.context.do(cuEventElapsedTime, &v, nil)
	return *(*float32)(unsafe.Pointer(&v[0])), err
}

// Close destroys the event. More calls do nothing.
func (e *Event) Close() error {
	if e.closed.Swap(true) {
		return nil
	}
	return e.context.do(cuEventDestroy, &words{e.handle}, nil)
}

// Module is loaded code.
type Module struct {
	context *Context
	handle  uint64
	closed  atomic.Bool
}

// LoadModule compiles PTX for the device and loads it.
func (c *Context) LoadModule(ptx string) (*Module, error) {
	image := append([]byte(ptx), 0)
	var v words
	if err := c.do(cuModuleLoadData, &v, unsafe.Pointer(&image[0])); err != nil {
		return nil, err
	}
	return &Module{context: c, handle: v[0]}, nil
}

// Close unloads the code. More calls do nothing.
func (m *Module) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	return m.context.do(cuModuleUnload, &words{m.handle}, nil)
}

// Kernel is a function of a module, and lives as long.
type Kernel struct {
	context *Context
	handle  uint64
}

// Kernel finds a function by its name.
func (m *Module) Kernel(name string) (Kernel, error) {
	symbol := append([]byte(name), 0)
	v := words{1: m.handle}
	err := m.context.do(cuModuleGetFunction, &v, unsafe.Pointer(&symbol[0]))
	return Kernel{m.context, v[0]}, err
}

// MaxArguments is how many a kernel may have.
const MaxArguments = 16

// Launch starts grid groups of block threads. All of the kernel's parameters are
// words of 8 bytes; there are as many as args, which must not be empty.
func (k Kernel) Launch(s *Stream, grid, block int, args []uint64) error {
	if len(args) == 0 || len(args) > MaxArguments {
		panic("internal error: a kernel of no, or too many, arguments")
	}
	var own [MaxArguments]uint64 // args may lie among Go's pointers, which C must not see
	copy(own[:], args)
	return k.context.do(cuLaunchKernel, &words{k.handle, uint64(grid), uint64(block), s.handle, uint64(len(args))}, unsafe.Pointer(&own))
}
