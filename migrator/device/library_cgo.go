//go:build cgo && linux

package device

/*
#cgo CFLAGS: -D_GNU_SOURCE
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// Library is a shared library that stays loaded until the process ends. It is safe for
// concurrent use.
type Library struct {
	name   string
	handle unsafe.Pointer
}

// Load loads a library by its soname or path. The error wraps ErrNoLibrary and has the
// loader's reason.
func Load(name string) (*Library, error) {
	runtime.LockOSThread() // dlerror is per thread
	defer runtime.UnlockOSThread()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	handle := C.dlopen(c, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLibrary, C.GoString(C.dlerror()))
	}
	return &Library{name: name, handle: handle}, nil
}

// Symbol returns the address of a symbol, or a *SymbolError.
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	if p := C.dlsym(l.handle, c); p != nil {
		return p, nil
	}
	return nil, &SymbolError{Library: l.name, Symbol: name}
}

// lookUp returns the address of a function's version, or of its default version if the library does not have that
// one; otherwise a *SymbolError.
func (l *Library) lookUp(f Function) (unsafe.Pointer, error) {
	if f.Version != "" {
		c, v := C.CString(f.Name), C.CString(f.Version)
		defer C.free(unsafe.Pointer(c))
		defer C.free(unsafe.Pointer(v))
		if p := C.dlvsym(l.handle, c, v); p != nil {
			return p, nil
		}
	}
	return l.Symbol(f.Name)
}

// Table has the addresses of functions in C memory. Like the library, it is never freed.
type Table []unsafe.Pointer

// Table looks up functions. It fails for the first one that is missing and not optional.
func (l *Library) Table(list []Function) (Table, error) {
	memory := (*unsafe.Pointer)(C.calloc(C.size_t(len(list)), C.size_t(unsafe.Sizeof(uintptr(0)))))
	if memory == nil {
		return nil, errors.New("out of memory for a table of functions")
	}
	t := Table(unsafe.Slice(memory, len(list)))
	for i, f := range list {
		if f.Inline {
			continue
		}
		var err error
		if t[i], err = l.lookUp(f); err != nil && !f.Optional {
			C.free(unsafe.Pointer(memory))
			return nil, err
		}
	}
	return t, nil
}

// Has reports whether the library has a function.
func (t Table) Has(i int) bool { return t[i] != nil }

// Text copies a C string at an address.
func Text(address uint64) string { return C.GoString((*C.char)(Memory(address))) }

// Memory returns memory of C, which Go neither moves nor frees.
func Memory(address uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&address)) }
