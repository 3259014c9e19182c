package cuda

import (
	"sync/atomic"
	"unsafe"
)

// Context is a reference to a device's primary context, in which this process works on
// the device. It costs some hundred MiB of device memory.
type Context struct {
	driver *Driver
	device uint64
	rdma   uint64 // 1 if allocations of the device can be made for NICs
	handle uintptr
	closed atomic.Bool
}

// RetainContext makes a device's primary context, or adds a reference to it.
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

// Close drops the reference. The last one ends the context, and everything in it except
// for exported memory. Further calls do nothing.
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

// object is something in a context that is destroyed by a call.
type object struct {
	context *Context
	handle  uint64
	destroy call
	closed  atomic.Bool
}

// Close destroys the object; it does not wait for work that uses it. Further calls do
// nothing.
func (o *object) Close() error {
	if o.closed.Swap(true) {
		return nil
	}
	return o.context.do(o.destroy, &words{o.handle}, nil)
}

// Stream is a sequence of work on the device. It is destroyed once its work is done.
type Stream struct{ object }

// NewLowPriorityStream makes a stream of the lowest priority, so that an engine's own
// work goes first. It does not wait for the legacy stream.
func (c *Context) NewLowPriorityStream() (*Stream, error) {
	var v words
	if err := c.do(cuCtxGetStreamPriorityRange, &v, nil); err != nil {
		return nil, err
	}
	v = words{1: uint64(int32(v[0]))}
	if err := c.do(cuStreamCreateWithPriority, &v, nil); err != nil {
		return nil, err
	}
	return &Stream{object{context: c, handle: v[0], destroy: cuStreamDestroy}}, nil
}

// Wait returns when all submitted work is done. It cannot be interrupted.
func (s *Stream) Wait() error { return s.context.do(cuStreamSynchronize, &words{s.handle}, nil) }

// Event is a point in a stream.
type Event struct{ object }

// The kinds of events.
const (
	// Untimed events cost less; a thread that waits for one sleeps.
	Untimed = 3
	// Timed events have a time; see Event.Since.
	Timed = 1
)

// NewEvent makes an event of a kind.
func (c *Context) NewEvent(kind int) (*Event, error) {
	v := words{1: uint64(kind)}
	if err := c.do(cuEventCreate, &v, nil); err != nil {
		return nil, err
	}
	return &Event{object{context: c, handle: v[0], destroy: cuEventDestroy}}, nil
}

// Record makes the event happen when everything submitted to s before is done.
func (e *Event) Record(s *Stream) error {
	return e.context.do(cuEventRecord, &words{e.handle, s.handle}, nil)
}

// Done reports whether the event has happened. That it has not is no error.
func (e *Event) Done() (bool, error) {
	c := e.context
	code := invoke(c.driver.functions, cuEventQuery, c.handle, &words{e.handle}, nil)
	if code == 0 || Code(code) == NotReady {
		return code == 0, nil
	}
	return false, c.driver.newError(cuEventQuery, code)
}

// Wait returns when the event has happened. It cannot be interrupted.
func (e *Event) Wait() error { return e.context.do(cuEventSynchronize, &words{e.handle}, nil) }

// Since returns the time between two Timed events that have happened, in milliseconds.
func (e *Event) Since(earlier *Event) (float32, error) {
	v := words{1: earlier.handle, 2: e.handle}
	err := e.context.do(cuEventElapsedTime, &v, nil)
	return *(*float32)(unsafe.Pointer(&v[0])), err
}

// Module is loaded code.
type Module struct{ object }

// LoadModule compiles PTX for the device and loads it.
func (c *Context) LoadModule(ptx string) (*Module, error) {
	image := append([]byte(ptx), 0)
	var v words
	if err := c.do(cuModuleLoadData, &v, unsafe.Pointer(&image[0])); err != nil {
		return nil, err
	}
	return &Module{object{context: c, handle: v[0], destroy: cuModuleUnload}}, nil
}

// Kernel is a function of a module, and lives as long as the module.
type Kernel struct {
	context *Context
	handle  uint64
}

// Kernel returns a function by its name.
func (m *Module) Kernel(name string) (Kernel, error) {
	symbol := append([]byte(name), 0)
	v := words{1: m.handle}
	err := m.context.do(cuModuleGetFunction, &v, unsafe.Pointer(&symbol[0]))
	return Kernel{m.context, v[0]}, err
}

// MaxArguments is the largest number of arguments of a kernel.
const MaxArguments = 16

// Launch starts grid groups of block threads. All parameters of the kernel are words of 8
// bytes; args has all of them and must not be empty.
func (k Kernel) Launch(s *Stream, grid, block int, args []uint64) error {
	if len(args) == 0 || len(args) > MaxArguments {
		panic("internal error: launch with no, or too many, arguments")
	}
	var own [MaxArguments]uint64 // args may lie next to Go pointers, which C must not see
	copy(own[:], args)
	return k.context.do(cuLaunchKernel, &words{k.handle, uint64(grid), uint64(block), s.handle, uint64(len(args))}, unsafe.Pointer(&own))
}
