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

// VersionedSymbol returns the address of one version of a symbol, or of its default
// version if the library does not have that one; otherwise a *SymbolError.
func (l *Library) VersionedSymbol(name, version string) (unsafe.Pointer, error) {
	c, v := C.CString(name), C.CString(version)
	defer C.free(unsafe.Pointer(c))
	defer C.free(unsafe.Pointer(v))
	if p := C.dlvsym(l.handle, c, v); p != nil {
		return p, nil
	}
	return l.Symbol(name)
}
