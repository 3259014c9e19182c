//go:build cgo && linux

package device

/*
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

// Library is a shared library in this process, for good. It is safe for
// concurrent use.
type Library struct {
	name   string
	handle unsafe.Pointer
}

// Load loads a library by its soname or path. Its error wraps ErrNoLibrary and
// has the loader's reason.
func Load(name string) (*Library, error) {
	runtime.LockOSThread() // dlerror is the thread's
	defer runtime.UnlockOSThread()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	handle := C.dlopen(c, C.RTLD_NOW|C.RTLD_LOCAL)
	if handle == nil {
		return nil, fmt.Errorf("%w: %s", ErrNoLibrary, C.GoString(C.dlerror()))
	}
	return &Library{name: name, handle: handle}, nil
}

// Symbol is the address of a symbol, or a *SymbolError.
func (l *Library) Symbol(name string) (unsafe.Pointer, error) {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	if p := C.dlsym(l.handle, c); p != nil {
		return p, nil
	}
	return nil, &SymbolError{Library: l.name, Symbol: name}
}
