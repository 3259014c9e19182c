//go:build !cgo || !linux

package cuda

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

func invoke(device.Table, call, uintptr, *words, unsafe.Pointer) int { return int(NotSupported) }

func symbol(call) string { return "" }
