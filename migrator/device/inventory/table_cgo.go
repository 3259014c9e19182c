//go:build cgo && linux

package inventory

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo noescape cn_call
#cgo nocallback cn_call
#include "shim.h"
*/
import "C"

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// invoke calls a function; see cn_call.
func invoke(t device.Table, c call, v *words, buf unsafe.Pointer) int {
	return int(C.cn_call(&t[0], C.int(c), (*C.uint64_t)(unsafe.Pointer(v)), buf))
}

// symbol returns the name of a call.
func symbol(c call) string { return C.GoString(C.cn_name(C.int(c))) }
