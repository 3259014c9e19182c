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

// table has the addresses of all calls; it is C's memory, and stays as the
// library does.
type table struct{ functions *unsafe.Pointer }

// load looks all calls up. It fails for the first one that is missing and not
// optional.
func (t *table) load(lib *device.Library) error {
	t.functions = (*unsafe.Pointer)(C.calloc(C.size_t(callCount), C.size_t(unsafe.Sizeof(uintptr(0)))))
	if t.functions == nil {
		return errors.New("no memory for the driver's functions")
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

// all is the table as Go sees it.
func (t *table) all() []unsafe.Pointer { return unsafe.Slice(t.functions, int(callCount)) }

// has reports whether an optional call is there.
func (t *table) has(c call) bool { return t.all()[c] != nil }

// call calls; see cs_call.
func (t *table) call(c call, context uintptr, v *words, buf unsafe.Pointer) int {
	first := (*C.uint64_t)(unsafe.Pointer(v))
	return int(C.cs_call(t.functions, C.int(c), C.uintptr_t(context), first, buf))
}

// symbol is the shim's name of a call, "" behind the last.
func symbol(c call) string { return C.GoString(C.cs_name(C.int(c))) }

// text is a string of the driver's.
func goString(address uint64) string { return C.GoString((*C.char)(driverMemory(address))) }

// foreign is memory of the driver's, which Go neither moves nor frees.
func driverMemory(address uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
