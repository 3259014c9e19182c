//go:build cgo && linux

package verbs

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo noescape cv_call
#cgo nocallback cv_call
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// table has the addresses of all calls in C memory. Like the library, it is never freed.
type table struct{ functions *unsafe.Pointer }

// load looks up all calls that are symbols. It fails for the first one that is missing
// and not optional.
func (t *table) load(lib *device.Library) error {
	t.functions = (*unsafe.Pointer)(C.calloc(C.size_t(callCount), C.size_t(unsafe.Sizeof(uintptr(0)))))
	if t.functions == nil {
		return errors.New("out of memory for the table of the library's functions")
	}
	for c := range t.all() {
		version := C.cv_version(C.int(c))
		if version == nil {
			continue
		}
		f, err := lib.VersionedSymbol(calls[c], C.GoString(version))
		if err != nil && !optional[call(c)] {
			C.free(unsafe.Pointer(t.functions))
			return err
		}
		t.all()[c] = f
	}
	return nil
}

// all returns the table as a slice.
func (t *table) all() []unsafe.Pointer { return unsafe.Slice(t.functions, int(callCount)) }

// has reports whether the library has an optional call.
func (t *table) has(c call) bool { return t.all()[c] != nil }

// call calls a function; see cv_call.
func (t *table) call(c call, v *words, buf unsafe.Pointer) syscall.Errno {
	return syscall.Errno(C.cv_call(t.functions, C.int(c), (*C.uint64_t)(unsafe.Pointer(v)), buf))
}

// symbol returns the shim's name of a call, "" after the last one.
func symbol(c call) string { return C.GoString(C.cv_name(C.int(c))) }

// goString copies a string of the library.
func goString(address uint64) string {
	return C.GoString((*C.char)(*(*unsafe.Pointer)(unsafe.Pointer(&address))))
}

// sizes returns the sizes of the structures that Go and C share.
func sizes() (work, path, completion uintptr) {
	return unsafe.Sizeof(C.cv_work{}), unsafe.Sizeof(C.cv_path{}), unsafe.Sizeof(C.cv_wc{})
}
