package call

import (
	"unsafe"

	"github.com/cascadeinfer/cascade/wasm/abi"
)

// first is what the arena holds without being asked: every frame of the kinds
// that are called per request, with room to spare.
const first = 64 << 10

// largest bounds what a host may ask for, in bytes.
const largest = 4 << 20

// The arena is made of words, so that it is aligned to 8.
var (
	static [first / 8]uint64
	arena  = static[:]
)

// region makes the arena hold least bytes and says where it is; 0 if it cannot.
// An earlier region is then no longer the host's.
func region(least uint32) uint64 {
	if least > largest {
		return 0
	}
	if words := (int(least) + 7) / 8; words > len(arena) {
		arena = make([]uint64, words)
	}
	at := unsafe.SliceData(arena)
	return abi.Region(uint32(uintptr(unsafe.Pointer(at))), uint32(8*len(arena)))
}

// frame returns the first n bytes of the arena, nil if it is not that long.
func frame(n uint32) []byte {
	if uint64(n) > 8*uint64(len(arena)) {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(arena))), 8*len(arena))[:n:n]
}
