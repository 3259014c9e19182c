//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Wno-unused-function
#cgo noescape cs_call
#cgo nocallback cs_call
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// invoke calls a function; see cs_call.
func invoke(t device.Table, c call, context uintptr, v *words, buf unsafe.Pointer) int {
	first := (*C.uint64_t)(unsafe.Pointer(v))
	return int(C.cs_call(&t[0], C.int(c), C.uintptr_t(context), first, buf))
}

// symbol returns the shim's name of a call, "" after the last one.
func symbol(c call) string { return C.GoString(C.cs_name(C.int(c))) }
