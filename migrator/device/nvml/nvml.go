// Package nvml reads what the GPU driver's own library (NVML) knows: GPUs, their
// links, what they may do to each other, and their health.
//
// It changes nothing on a GPU and decides nothing. The library is loaded when it
// is opened; a machine without it gives an error value.
//
// # Invariants
//
//  1. No entry point is called before nvmlInit has succeeded, and none that the
//     library lacks: either would end the process, past any recover.
//  2. A call that fails costs what it would have told, and no more: the rest is
//     returned beside the error, which names each call, its GPU and its code.
//  3. What a driver does not offer, or is too old for, is no error: it is left out.
package nvml

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/migrator/device/topology"
)

// Config sets a Library up.
type Config struct {
	// Library is the soname or path; "" means libnvidia-ml.so.1. A process opens
	// one library only, as often as it likes.
	Library string
}

// Inventory is what the library tells of a machine.
type Inventory struct {
	Driver string // its version
	GPUs   []topology.GPU
	Peers  []topology.Peer // pairs of different GPUs, both ways
}

// Errors of Open and after, beside those of package device and CallError.
var (
	// ErrOtherLibrary says that the process has opened another library before.
	ErrOtherLibrary = errors.New("this process has opened another NVML library")
	// ErrClosed says that the Library is closed.
	ErrClosed = errors.New("NVML is closed")
)

// CallError is a call that failed.
type CallError struct {
	Call string // the entry point
	GPU  int    // its index; topology.Unknown for none
	Code int    // nvmlReturn_t
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

// The codes that have a meaning here.
const (
	codeInvalidArgument = 2
	codeNotSupported    = 3
	codeTimeout         = 10
	codeLost            = 15
	codeResetRequired   = 16
)

// codeNames are nvmlReturn_t's, without their prefix NVML_. The library's own texts
// are not asked for: it may be the library that is broken.
var codeNames = map[int]string{
	1: "ERROR_UNINITIALIZED", 2: "ERROR_INVALID_ARGUMENT", 3: "ERROR_NOT_SUPPORTED", 4: "ERROR_NO_PERMISSION",
	6: "ERROR_NOT_FOUND", 7: "ERROR_INSUFFICIENT_SIZE", 8: "ERROR_INSUFFICIENT_POWER", 9: "ERROR_DRIVER_NOT_LOADED",
	10: "ERROR_TIMEOUT", 11: "ERROR_IRQ_ISSUE", 12: "ERROR_LIBRARY_NOT_FOUND", 13: "ERROR_FUNCTION_NOT_FOUND",
	14: "ERROR_CORRUPTED_INFOROM", 15: "ERROR_GPU_IS_LOST", 16: "ERROR_RESET_REQUIRED", 17: "ERROR_OPERATING_SYSTEM",
	18: "ERROR_LIB_RM_VERSION_MISMATCH", 19: "ERROR_IN_USE", 20: "ERROR_MEMORY", 21: "ERROR_NO_DATA",
	23: "ERROR_INSUFFICIENT_RESOURCES", 26: "ERROR_DEPRECATED", 27: "ERROR_NOT_READY", 28: "ERROR_GPU_NOT_FOUND", 999: "ERROR_UNKNOWN",
}

// remedies is what an operator does about a code.
var remedies = map[int]string{
	4:  "let this user open /dev/nvidia*",
	9:  "no NVIDIA driver is loaded: modprobe nvidia",
	15: "the GPU has fallen off the bus: reset the machine",
	16: "reset the GPU",
	18: "the kernel's driver and this library are of two versions: reboot, or install one of them again",
}

// required are the entry points without which there is no inventory.
var required = []string{
	"nvmlInit_v2", "nvmlShutdown", "nvmlErrorString", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
	"nvmlDeviceGetUUID", "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMemoryInfo",
}

// optional are those that a driver may lack.
var optional = []string{
	"nvmlSystemGetDriverVersion", "nvmlDeviceGetMemoryBusWidth", "nvmlDeviceGetMaxClockInfo", "nvmlDeviceGetNumaNodeId",
	"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
	"nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetNvLinkRemoteDeviceType",
	"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows",
	"nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus",
	"nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2", "nvmlEventSetFree",
}

// Library is NVML, initialised. It is safe for concurrent use.
type Library struct {
	missing map[string]bool
	state
}

// MissingFunctions are the entry points that this driver is too old for, in no order that
// means anything; what they would tell is left out.
func (l *Library) MissingFunctions() []string {
	var out []string
	for _, s := range optional {
		if l.missing[s] {
			out = append(out, s)
		}
	}
	return out
}

// lostReason says what a code means for the whole GPU, "" for nothing.
func lostReason(code int) string {
	switch code {
	case codeLost, codeResetRequired:
		return remedies[code]
	}
	return ""
}
