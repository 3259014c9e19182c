package transport

import (
	_ "embed"
	"encoding/binary"
)

// KernelPTX is the code of all kernels, for compute capability 8.0 and newer: they copy and checksum the blocks of a plan
// in one launch. kernels.cu is the source, core.h the code of one thread. "make generate" regenerates kernels.ptx; "make
// ptxas" downloads the assembler that the tests check it with. Package transport/cuda loads and launches the kernels.
//
//go:embed kernels.ptx
var KernelPTX string

// KernelCore is the C source of one thread, for fake drivers, which run it on a processor.
//
//go:embed core.h
var KernelCore string

// The names of the kernels. Each takes KernelArguments words; see kernels.cu.
const (
	KernelCopy           = "kv_copy"    // from pool to pool, by both block numbers
	KernelGather         = "kv_gather"  // from a pool, packed in the order of the entries
	KernelScatter        = "kv_scatter" // from packed entries into a pool
	KernelSum            = "kv_sum"     // checksums the source's blocks, copies nothing
	KernelSumDestination = "kv_sum_dst" // checksums the target's blocks

	KernelArguments   = 7
	KernelRegionWords = 5 // of 8 bytes: source, its stride, target, its stride, bytes
)

// RawSum returns the checksum of b as a kernel computes it, before FoldSum.
//
// It is exempt from the race detector, with which it would take twenty times as long; it
// only reads.
//
//go:norace
func RawSum(b []byte) uint64 {
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

// FoldSum returns the 32 bits of a block table for a raw checksum over so many bytes.
func FoldSum(sum uint64, size int64) uint32 {
	h := (sum ^ uint64(size)) * 0xff51afd7ed558ccd
	h ^= h >> 32
	h *= 0xc4ceb9fe1a85ec53
	return uint32(h >> 32)
}
