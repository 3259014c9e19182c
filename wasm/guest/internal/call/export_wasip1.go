package call

import (
	"runtime"
	"unsafe"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// maxArena bounds the arena, in bytes.
const maxArena = 4 << 20

// export makes the arena at least as large as least, and returns its address and size; 0
// if it cannot. The host must not use an earlier region after that.
//
//go:wasmexport cs_arena_v1
func export(least uint32) uint64 {
	if least > maxArena {
		return 0
	}
	if words := (int(least) + 7) / 8; words > len(arena) {
		arena = make([]uint64, words)
	}
	at := unsafe.SliceData(arena)
	return abi.Region(uint32(uintptr(unsafe.Pointer(at))), uint32(8*len(arena)))
}

// minGarbage is how much a guest must have allocated, in bytes, before a collection is
// worth its time: an eighth of what Go waits for.
const minGarbage = 512 << 10

// allocated is the total allocated until the last collection, in bytes.
var (
	allocated uint64
	stats     runtime.MemStats
)

// runDeferred collects garbage, so that Go does not collect it during a call, which has
// too little fuel for it.
//
//go:wasmexport cs_run_deferred_v1
func runDeferred(uint32) uint64 {
	if runtime.ReadMemStats(&stats); stats.TotalAlloc-allocated >= minGarbage {
		runtime.GC()
		allocated = stats.TotalAlloc
	}
	return 0
}

//go:wasmimport cascade_v1 log
func hostLog(level uint32, line string)

//go:wasmimport cascade_v1 fail
func hostFail(code uint32, why string)
