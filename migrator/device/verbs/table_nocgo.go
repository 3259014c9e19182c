//go:build !cgo || !linux

package verbs

import (
	"syscall"
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// table is empty: without cgo no library is loaded, and no Library is made.
type table struct{}

func (t *table) load(*device.Library) error { return device.ErrNoCgo }

func (t *table) has(call) bool { return false }

func (t *table) call(call, *words, unsafe.Pointer) syscall.Errno { return syscall.ENOSYS }

func symbol(call) string { return "" }

func goString(uint64) string { return "" }

func sizes() (work, path, completion uintptr) { return 0, 0, 0 }
