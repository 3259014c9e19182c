//go:build !cgo || !linux

package cuda

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

// table is empty: without cgo no library is loaded, and no Driver is made.
type table struct{}

func (t *table) load(*device.Library) error { return device.ErrNoCgo }

func (t *table) has(call) bool { return false }

func (t *table) call(call, uintptr, *words, unsafe.Pointer) int { return int(NotSupported) }

func symbol(call) string { return "" }

func goString(uint64) string { return "" }

func driverMemory(uint64) unsafe.Pointer { return nil }
