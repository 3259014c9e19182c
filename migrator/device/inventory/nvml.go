package inventory

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// NVMLConfig configures a Library.
type NVMLConfig struct {
	Library string // the soname or path; "" means libnvidia-ml.so.1
}

// NVMLInventory is what the library knows of a host.
type NVMLInventory struct {
	Driver string // its version
	GPUs   []topology.GPU
	Peers  []topology.Peer // pairs of different GPUs, in both directions
}

// ErrClosed is the error of a closed Library.
var ErrClosed = errors.New("NVML is closed")

// CallError is a call that failed.
type CallError struct {
	Call string // the function
	GPU  int    // its index; topology.Unknown for none
	Code int    // nvmlReturn_t
}

func newCallError(c call, gpu, code int) *CallError {
	return &CallError{Call: symbol(c), GPU: gpu, Code: code}
}

func (e *CallError) Error() string {
	name, known := codeNames[e.Code]
	if !known {
		name = "unknown code"
	}
	at := ""
	if e.GPU != topology.Unknown {
		at = fmt.Sprintf(" for GPU %d", e.GPU)
	}
	text := fmt.Sprintf("%s%s: %s (%d)", e.Call, at, name, e.Code)
	if todo := remedies[e.Code]; todo != "" {
		text += ": " + todo
	}
	return text
}

// The codes that are handled.
const (
	codeInvalidArgument = 2
	codeNotSupported    = 3
	codeLost            = 15
	codeResetRequired   = 16
)

// codeNames are the names of nvmlReturn_t, without the prefix NVML_. The library's own
// texts are not used, since it may be the library that is broken.
var codeNames = map[int]string{
	1: "ERROR_UNINITIALIZED", 2: "ERROR_INVALID_ARGUMENT", 3: "ERROR_NOT_SUPPORTED", 4: "ERROR_NO_PERMISSION",
	6: "ERROR_NOT_FOUND", 7: "ERROR_INSUFFICIENT_SIZE", 8: "ERROR_INSUFFICIENT_POWER", 9: "ERROR_DRIVER_NOT_LOADED",
	10: "ERROR_TIMEOUT", 11: "ERROR_IRQ_ISSUE", 12: "ERROR_LIBRARY_NOT_FOUND", 13: "ERROR_FUNCTION_NOT_FOUND",
	14: "ERROR_CORRUPTED_INFOROM", 15: "ERROR_GPU_IS_LOST", 16: "ERROR_RESET_REQUIRED", 17: "ERROR_OPERATING_SYSTEM",
	18: "ERROR_LIB_RM_VERSION_MISMATCH", 19: "ERROR_IN_USE", 20: "ERROR_MEMORY", 21: "ERROR_NO_DATA",
	23: "ERROR_INSUFFICIENT_RESOURCES", 26: "ERROR_DEPRECATED", 27: "ERROR_NOT_READY", 28: "ERROR_GPU_NOT_FOUND", 999: "ERROR_UNKNOWN",
}

// remedies are what an operator can do about a code.
var remedies = map[int]string{
	4:  "let this user open /dev/nvidia*",
	9:  "no NVIDIA driver is loaded: run modprobe nvidia",
	15: "the GPU has fallen off the bus: restart the host",
	16: "reset the GPU",
	18: "the kernel module and this library have different versions: restart the host, or reinstall one of them",
}

// lostReason returns why a code means that the whole GPU is lost, "" if it does not.
func lostReason(code int) string {
	if code == codeLost || code == codeResetRequired {
		return remedies[code]
	}
	return ""
}
