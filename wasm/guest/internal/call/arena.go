package call

import "unsafe"

// first is what the arena holds without being asked: every frame of the kinds
// that are called per request, with room to spare.
const first = 64 << 10

// The arena is made of words, so that it is aligned to 8.
var (
	static [first / 8]uint64
	arena  = static[:]
)

// frame returns the first n bytes of the arena, nil if it is not that long.
func frame(n uint32) []byte {
	if uint64(n) > 8*uint64(len(arena)) {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(arena))), 8*len(arena))[:n:n]
}
