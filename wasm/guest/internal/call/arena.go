package call

import "unsafe"

// initialSize is the arena's size at first, in bytes: more than any frame of a
// per-request kind.
const initialSize = 64 << 10

// The arena consists of 64-bit words, so that it is aligned to 8.
var (
	static [initialSize / 8]uint64
	arena  = static[:]
)

// frame returns the first n bytes of the arena, nil if it is not that long.
func frame(n uint32) []byte {
	if uint64(n) > 8*uint64(len(arena)) {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(arena))), 8*len(arena))[:n:n]
}
