//go:build !cgo || !linux

package inventory

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/migrator/device"
)

func invoke(device.Table, call, *words, unsafe.Pointer) int { return codeNotSupported }

func symbol(call) string { return "" }
