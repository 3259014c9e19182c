//go:build !cgo || !linux

package verbs

import (
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

func invoke(device.Table, call, *words, unsafe.Pointer) syscall.Errno { return syscall.ENOSYS }

func symbol(call) string { return "" }

func version(call) string { return "" }

func sizes() (work, path, completion uintptr) { return 0, 0, 0 }
