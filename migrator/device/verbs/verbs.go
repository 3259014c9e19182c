// Package verbs calls libibverbs, which it loads at run time: no headers, and no
// library are needed to build and start.
//
// It is the library's own interface with Go's types and errors, for what reliable
// connections between two processes need: a device, memory that it may reach,
// completion queues and queue pairs. It knows no pools and no plans. Addresses of
// memory are numbers here, which Go never dereferences: the caller keeps memory
// alive and where it is for as long as it is registered.
//
// What is opened is closed by its own Close, parts before what they are part of.
// Methods of different objects may be called at once; those of one object as they
// say.
package verbs

import (
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// Soname is the library that Open loads for "".
const Soname = "libibverbs.so.1"

// ABI is the C header that declares what is used of the library, for libraries
// that stand in for it in tests.
//
//go:embed abi.h
var ABI string

// Error is a call that the library refused.
type Error struct {
	Call  string // the function
	Errno syscall.Errno
	Hint  string // what to do about it; "" where that is not known
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %v (%d)", e.Call, e.Errno, int(e.Errno))
	if e.Hint != "" {
		s += ": " + e.Hint
	}
	return s
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// Resources counts what is open.
type Resources struct{ Devices, Regions, Queues, Pairs int64 }

// Library is the loaded library. It is safe for concurrent use.
type Library struct {
	functions                       table
	devices, regions, queues, pairs atomic.Int64
}

// words are a call's arguments and results. Their meaning is in shim.c.
type words [8]uint64

// Open loads the library from a path; "" is Soname. The error wraps
// device.ErrNoLibrary, device.ErrNoCgo or a *device.SymbolError.
func Open(path string) (*Library, error) {
	if path == "" {
		path = Soname
	}
	lib, err := device.Load(path)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	l := &Library{}
	if err := l.functions.load(lib); err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	return l, nil
}

// OpenResources counts what is open at the moment.
func (l *Library) OpenResources() Resources {
	return Resources{l.devices.Load(), l.regions.Load(), l.queues.Load(), l.pairs.Load()}
}

// do makes a call and turns its status into an error.
func (l *Library) do(c call, v *words, buf unsafe.Pointer) error {
	if errno := l.functions.call(c, v, buf); errno != 0 {
		return &Error{Call: calls[c], Errno: errno}
	}
	return nil
}

// Devices lists the names of this machine's RDMA devices, in the library's order.
func (l *Library) Devices() ([]string, error) {
	var names []string
	err := l.forEachDevice(func(list, i uint64) error {
		v := words{1: list, 2: i}
		if err := l.do(getDeviceName, &v, nil); err != nil {
			return err
		}
		names = append(names, goString(v[0]))
		return nil
	})
	return names, err
}

// forEachDevice calls f for every device of a list that lives as long as that.
func (l *Library) forEachDevice(f func(list, i uint64) error) error {
	var v words
	if err := l.do(getDeviceList, &v, nil); err != nil {
		if errors.Is(err, syscall.ENOSYS) {
			return nil // the kernel has no RDMA: there are none
		}
		return err
	}
	list, n := v[0], v[1]
	var err error
	for i := uint64(0); i < n && err == nil; i++ {
		err = f(list, i)
	}
	return errors.Join(err, l.do(freeDeviceList, &words{list}, nil))
}

// statusText is what the library calls the status of a work request.
func (l *Library) statusText(status uint32) string {
	v := words{uint64(status)}
	if l.do(statusText, &v, nil) != nil {
		return fmt.Sprintf("status %d", status)
	}
	return goString(v[0])
}
