//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Wno-unused-function
#cgo noescape cs_call
#cgo nocallback cs_call
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// table has the addresses of all calls in C memory. Like the library, it is never freed.
type table struct{ functions *unsafe.Pointer }

// load looks up all calls. It fails for the first one that is missing and not optional.
func (t *table) load(lib *device.Library) error {
	t.functions = (*unsafe.Pointer)(C.calloc(C.size_t(callCount), C.size_t(unsafe.Sizeof(uintptr(0)))))
	if t.functions == nil {
		return errors.New("out of memory for the table of the driver's functions")
	}
	for c := range t.all() {
		f, err := lib.Symbol(calls[c])
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

// call calls a function; see cs_call.
func (t *table) call(c call, context uintptr, v *words, buf unsafe.Pointer) int {
	first := (*C.uint64_t)(unsafe.Pointer(v))
	return int(C.cs_call(t.functions, C.int(c), C.uintptr_t(context), first, buf))
}

// symbol returns the shim's name of a call, "" after the last one.
func symbol(c call) string { return C.GoString(C.cs_name(C.int(c))) }

// goString copies a string of the driver.
func goString(address uint64) string { return C.GoString((*C.char)(driverMemory(address))) }

// driverMemory returns memory of the driver, which Go neither moves nor frees.
func driverMemory(address uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
