// Package kernel has the code that runs on a GPU: what moves and sums the blocks
// of a plan in one launch, as PTX, and the same sum for a processor.
//
// kernels.cu is its source, core.h what one of its threads does. "make ptx"
// regenerates kernels.ptx; "make ptxas" fetches the assembler that the tests hold
// it against. It knows no driver and no layouts.
package kernel

import (
	_ "embed"
	"encoding/binary"
)

// PTX is the code of all kernels, for compute capability 8.0 and newer.
//
//go:embed kernels.ptx
var PTX string

// Core is the C source of what a thread does, for drivers that are none.
//
//go:embed core.h
var Core string

// The kernels of PTX. Each takes Arguments words; see kernels.cu.
const (
	Copy           = "kv_copy"    // from pool to pool, by both block numbers
	Gather         = "kv_gather"  // from a pool, packed in the order of the entries
	Scatter        = "kv_scatter" // from packed entries into a pool
	Sum            = "kv_sum"     // sums the source's blocks, and moves nothing
	SumDestination = "kv_sum_dst" // sums the target's

	Arguments   = 7
	RegionWords = 5 // of 8 bytes: source, its stride, target, its stride, bytes
)

// Raw is the sum of b as a kernel computes it, before Fold.
//
// It only reads; watched word by word by the race detector it would take twenty
// times as long.
//
//go:norace
func Raw(b []byte) uint64 {
	const step = 0x9e3779b97f4a7c15
	sum, k := uint64(0), uint64(step)
	for ; len(b) >= 8; b = b[8:] {
		w := binary.LittleEndian.Uint64(b)
		sum += uint64(uint32(w)+uint32(k)) * uint64(uint32(w>>32)+uint32(k>>32))
		k += step
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		w := binary.LittleEndian.Uint64(last[:])
		sum += uint64(uint32(w)+uint32(k)) * uint64(uint32(w>>32)+uint32(k>>32))
	}
	return sum
}

// Fold makes a block table's 32 bits of a raw sum over so many bytes.
func Fold(sum uint64, size int64) uint32 {
	h := (sum ^ uint64(size)) * 0xff51afd7ed558ccd
	h ^= h >> 32
	h *= 0xc4ceb9fe1a85ec53
	return uint32(h >> 32)
}
