// Package cuda calls the CUDA driver, which it loads at run time: building and starting
// need no toolkit, no headers and no driver.
//
// Open loads the driver. The package is the driver's API with Go's types and errors, and
// nothing above it: it knows no pools and no plans. All calls are safe for concurrent
// use. Each call makes its context current first, because a goroutine is not always on
// the same thread. Addresses of device memory are numbers (Pointer), which Go never
// dereferences.
package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// Soname is the library that Open loads for "".
const Soname = "libcuda.so.1"

// Code is a CUresult.
type Code int

// The codes that callers distinguish.
const (
	InvalidValue Code = 1
	OutOfMemory  Code = 2
	NotFound     Code = 500
	NotReady     Code = 600
	NotSupported Code = 801
)

// Sticky reports whether a call with this code made its context useless: every later call
// in it fails. Releasing the context and retaining it again may help; if it does not,
// cuda.h says, only a new process does.
func (c Code) Sticky() bool {
	switch c {
	case 4, // the driver is shutting down
		214, 220, 226, // uncorrectable errors of memory and NVLink, contained errors
		700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, // faults of kernels
		805, 806, 810, // the MPS server has gone
		911, // an external device
		999: // unknown, as for a GPU that has fallen off the bus
		return true
	}
	return false
}

// Error is a call that the driver failed.
type Error struct {
	Call string // the symbol of the function
	Code Code
	Name string // the driver's name of the code
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, int(e.Code)) }

// Sticky reports whether err made its context useless.
func Sticky(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code.Sticky()
}

// HasCode reports whether err is a call that returned this code.
func HasCode(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// Driver is the loaded library.
type Driver struct {
	functions device.Table
	version   int
}

// words are the arguments and results of a call. shim.h defines their meaning.
type words [8]uint64

// Open loads and initializes the driver from a path; "" means Soname. The error wraps
// device.ErrNoLibrary, device.ErrNoCgo, a *device.SymbolError, or an *Error of the calls
// it makes.
func Open(path string) (*Driver, error) {
	if path == "" {
		path = Soname
	}
	lib, err := device.Load(path)
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	var list []device.Function
	for c := range callCount {
		list = append(list, device.Function{Name: symbol(c), Optional: optional[c]})
	}
	d := &Driver{}
	if d.functions, err = lib.Table(list); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	var v words
	if err := d.do(cuInit, 0, &v, nil); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	if err := d.do(cuDriverGetVersion, 0, &v, nil); err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	d.version = int(int32(v[0]))
	return d, nil
}

// Version returns the newest CUDA version that the driver supports: 12080 is 12.8.
func (d *Driver) Version() int { return d.version }

// has reports whether the library has an optional function.
func (d *Driver) has(c call) bool { return d.functions.Has(int(c)) }

// do calls a function and turns its code into an error.
func (d *Driver) do(c call, context uintptr, v *words, buf unsafe.Pointer) error {
	code := invoke(d.functions, c, context, v, buf)
	if code == 0 {
		return nil
	}
	return d.newError(c, code)
}

// newError returns the error of a code, which is negative if making the context current
// failed.
func (d *Driver) newError(c call, code int) error {
	if code < 0 {
		c, code = cuCtxSetCurrent, -code
	}
	v, name := words{1: uint64(code)}, "unknown code"
	if invoke(d.functions, cuGetErrorName, 0, &v, nil) == 0 {
		name = device.Text(v[0])
	}
	return &Error{Call: symbol(c), Code: Code(code), Name: name}
}

// Device describes a GPU.
type Device struct {
	Ordinal         int
	Name            string
	UUID            [16]byte
	PCI             string // domain:bus:device.function
	Bytes           int64
	Major, Minor    int // compute capability
	Multiprocessors int
	VMM             bool // memory can be exported as a descriptor
	DMABuf          bool // memory can be registered by other devices; see Context.DMABuf
}

// Attributes of a device, numbered as in cuda.h.
const (
	attrMultiprocessors = 16
	attrMajor           = 75
	attrMinor           = 76
	attrVMM             = 102
	attrDescriptors     = 103
	attrRDMA            = 110
	attrDMABuf          = 124
)

// Count returns the number of devices.
func (d *Driver) Count() (int, error) {
	var v words
	err := d.do(cuDeviceGetCount, 0, &v, nil)
	return int(int32(v[0])), err
}

// handle returns the driver's handle of a device.
func (d *Driver) handle(ordinal int) (uint64, error) {
	v := words{1: uint64(ordinal)}
	err := d.do(cuDeviceGet, 0, &v, nil)
	return uint64(uint32(v[0])), err
}

// Device describes one device.
func (d *Driver) Device(ordinal int) (Device, error) {
	info := Device{Ordinal: ordinal}
	dev, err := d.handle(ordinal)
	if err != nil {
		return info, err
	}
	var name [256]byte
	var uuid [16]byte
	if err := d.do(cuDeviceGetName, 0, &words{uint64(len(name)), dev}, unsafe.Pointer(&name)); err != nil {
		return info, err
	}
	info.Name = cString(name[:])
	if err := d.do(cuDeviceGetUUID, 0, &words{dev}, unsafe.Pointer(&uuid)); err != nil {
		return info, err
	}
	info.UUID = uuid
	clear(name[:])
	if err := d.do(cuDeviceGetPCIBusID, 0, &words{uint64(len(name)), dev}, unsafe.Pointer(&name)); err != nil {
		return info, err
	}
	info.PCI = cString(name[:])
	v := words{1: dev}
	if err := d.do(cuDeviceTotalMem, 0, &v, nil); err != nil {
		return info, err
	}
	info.Bytes = int64(v[0])
	var vmm, descriptors, dmabuf int
	for _, a := range []struct {
		number int
		to     *int
	}{
		{attrMultiprocessors, &info.Multiprocessors}, {attrMajor, &info.Major}, {attrMinor, &info.Minor},
		{attrVMM, &vmm}, {attrDescriptors, &descriptors}, {attrDMABuf, &dmabuf},
	} {
		if *a.to, err = d.attribute(dev, a.number); err != nil {
			return info, err
		}
	}
	info.VMM, info.DMABuf = vmm == 1 && descriptors == 1, dmabuf == 1 && d.has(cuMemGetHandleForAddressRange)
	return info, nil
}

// attribute returns an attribute of a device, 0 if the driver does not know it.
func (d *Driver) attribute(dev uint64, number int) (int, error) {
	v := words{1: uint64(number), 2: dev}
	if err := d.do(cuDeviceGetAttribute, 0, &v, nil); err != nil && !HasCode(err, InvalidValue) {
		return 0, err
	}
	return int(int32(v[0])), nil
}

// CanAccess reports whether a device can read the memory of another.
func (d *Driver) CanAccess(ordinal, other int) (bool, error) {
	dev, err := d.handle(ordinal)
	if err != nil {
		return false, err
	}
	peer, err := d.handle(other)
	if err != nil {
		return false, err
	}
	v := words{1: dev, 2: peer}
	err = d.do(cuDeviceCanAccessPeer, 0, &v, nil)
	return int32(v[0]) == 1, err
}

// cString returns the C string in b.
func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
