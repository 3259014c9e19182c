// Package verbs calls libibverbs, which it loads at run time: building and starting need
// no headers and no library.
//
// Open loads the library, OpenDevice opens a device. The package is the library's API
// with Go's types and errors, as far as reliable connections between two processes need
// it: devices, memory regions, completion queues and queue pairs. It knows no pools and
// no plans. Addresses of memory are numbers, which Go never dereferences: the caller
// keeps memory alive and in place as long as it is registered.
//
// Objects are closed by their own Close, in the reverse order of their making. Methods of
// different objects may be called concurrently; those of one object as their type says.
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

// ABI is the C header that declares the used part of the library, for fake libraries in
// tests.
//
//go:embed abi.h
var ABI string

// Error is a call that the library failed.
type Error struct {
	Call  string // the function
	Errno syscall.Errno
	Hint  string // what to do about it; "" if that is unknown
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

// Resources counts open objects.
type Resources struct{ Devices, Regions, Queues, Pairs int64 }

// Library is the loaded library. It is safe for concurrent use.
type Library struct {
	functions                       device.Table
	devices, regions, queues, pairs atomic.Int64
}

// words are the arguments and results of a call. shim.c defines their meaning.
type words [8]uint64

// Open loads the library from a path; "" means Soname. The error wraps
// device.ErrNoLibrary, device.ErrNoCgo or a *device.SymbolError.
func Open(path string) (*Library, error) {
	if path == "" {
		path = Soname
	}
	lib, err := device.Load(path)
	if err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	var list []device.Function
	for c := range callCount {
		list = append(list, device.Function{Name: symbol(c), Version: version(c), Optional: optional[c], Inline: version(c) == ""})
	}
	l := &Library{}
	if l.functions, err = lib.Table(list); err != nil {
		return nil, fmt.Errorf("verbs: %w", err)
	}
	return l, nil
}

// OpenResources counts the objects that are open now.
func (l *Library) OpenResources() Resources {
	return Resources{l.devices.Load(), l.regions.Load(), l.queues.Load(), l.pairs.Load()}
}

// has reports whether the library has an optional function.
func (l *Library) has(c call) bool { return l.functions.Has(int(c)) }

// do calls a function and turns its status into an error.
func (l *Library) do(c call, v *words, buf unsafe.Pointer) error {
	if errno := invoke(l.functions, c, v, buf); errno != 0 {
		return &Error{Call: symbol(c), Errno: errno}
	}
	return nil
}

// Devices lists the names of this host's RDMA devices, in the library's order.
func (l *Library) Devices() ([]string, error) {
	var names []string
	err := l.forEachDevice(func(list, i uint64) error {
		v := words{1: list, 2: i}
		if err := l.do(getDeviceName, &v, nil); err != nil {
			return err
		}
		names = append(names, device.Text(v[0]))
		return nil
	})
	return names, err
}

// forEachDevice calls f for every device of a list, which is freed afterwards.
func (l *Library) forEachDevice(f func(list, i uint64) error) error {
	var v words
	if err := l.do(getDeviceList, &v, nil); err != nil {
		if errors.Is(err, syscall.ENOSYS) {
			return nil // the kernel does not support RDMA
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

// statusText returns the library's name of the status of a work request.
func (l *Library) statusText(status uint32) string {
	v := words{uint64(status)}
	if l.do(statusText, &v, nil) != nil {
		return fmt.Sprintf("status %d", status)
	}
	return device.Text(v[0])
}
