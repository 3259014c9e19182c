// Package kernel holds the code that runs on a GPU, as PTX: kernels that copy and
// checksum the blocks of a plan in one launch. It also computes the same checksum on a
// processor.
//
// kernels.cu is the source, core.h the code of one thread. "make ptx" regenerates
// kernels.ptx; "make ptxas" downloads the assembler that the tests check it with. Package
// transport/cuda loads and launches the kernels. This package knows no driver and no
// layouts.
package kernel

import (
	_ "embed"
	"encoding/binary"
)

// PTX is the code of all kernels, for compute capability 8.0 and newer.
//
//go:embed kernels.ptx
var PTX string

// Core is the C source of one thread, for fake drivers, which run it on a processor.
//
//go:embed core.h
var Core string

// The names of the kernels. Each takes Arguments words; see kernels.cu.
const (
	Copy           = "kv_copy"    // from pool to pool, by both block numbers
	Gather         = "kv_gather"  // from a pool, packed in the order of the entries
	Scatter        = "kv_scatter" // from packed entries into a pool
	Sum            = "kv_sum"     // checksums the source's blocks, copies nothing
	SumDestination = "kv_sum_dst" // checksums the target's blocks

	Arguments   = 7
	RegionWords = 5 // of 8 bytes: source, its stride, target, its stride, bytes
)

// Raw returns the checksum of b as a kernel computes it, before Fold.
//
// It is exempt from the race detector, with which it would take twenty times as long; it
// only reads.
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

// Fold returns the 32 bits of a block table for a raw checksum over so many bytes.
func Fold(sum uint64, size int64) uint32 {
	h := (sum ^ uint64(size)) * 0xff51afd7ed558ccd
	h ^= h >> 32
	h *= 0xc4ceb9fe1a85ec53
	return uint32(h >> 32)
}
