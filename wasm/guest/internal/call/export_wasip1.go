package call

import (
	"runtime"
	"unsafe"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// largest bounds what a host may ask for, in bytes.
const largest = 4 << 20

// export makes the arena hold least bytes and says where it is; 0 if it cannot.
// An earlier region is then no longer the host's.
//
//go:wasmexport cs_arena_v1
func export(least uint32) uint64 {
	if least > largest {
		return 0
	}
	if words := (int(least) + 7) / 8; words > len(arena) {
		arena = make([]uint64, words)
	}
	at := unsafe.SliceData(arena)
	return abi.Region(uint32(uintptr(unsafe.Pointer(at))), uint32(8*len(arena)))
}

// worth is how much a guest must have allocated for a collection to be worth its
// time: an eighth of what Go waits for.
const worth = 512 << 10

// allocated is what had been allocated at the last collection, in bytes.
var (
	allocated uint64
	stats     runtime.MemStats
)

// runDeferred collects garbage, so that it is not collected in the middle of a call that
// has no fuel for it.
//
//go:wasmexport cs_run_deferred_v1
func runDeferred(uint32) uint64 {
	if runtime.ReadMemStats(&stats); stats.TotalAlloc-allocated >= worth {
		runtime.GC()
		allocated = stats.TotalAlloc
	}
	return 0
}

//go:wasmimport cascade_v1 log
func hostLog(level uint32, line string)

//go:wasmimport cascade_v1 fail
func hostFail(code uint32, why string)
