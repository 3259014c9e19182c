//go:build cgo && linux

package verbs

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo noescape cv_call
#cgo nocallback cv_call
#include "shim.h"
*/
import "C"

import (
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// invoke calls a function; see cv_call.
func invoke(t device.Table, c call, v *words, buf unsafe.Pointer) syscall.Errno {
	return syscall.Errno(C.cv_call(&t[0], C.int(c), (*C.uint64_t)(unsafe.Pointer(v)), buf))
}

// symbol returns the shim's name of a call, "" after the last one.
func symbol(c call) string { return C.GoString(C.cv_name(C.int(c))) }

// version returns the version of a call's symbol, "" if it has none.
func version(c call) string { return C.GoString(C.cv_version(C.int(c))) }

// sizes returns the sizes of the structures that Go and C share.
func sizes() (work, path, completion uintptr) {
	return unsafe.Sizeof(C.cv_work{}), unsafe.Sizeof(C.cv_path{}), unsafe.Sizeof(C.cv_wc{})
}
