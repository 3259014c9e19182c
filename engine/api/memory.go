package api

import (
	"errors"
	"fmt"
)

// Bounds of a Welcome.
const (
	maxBytes       = 1 << 44 // of a memory
	maxBlocks      = 1 << 31
	maxBlockTokens = 1 << 20
	maxRegions     = 1024
	// MaxHandles is the number of handles, at most: so many descriptors go with a message.
	MaxHandles = 253
	maxRanks   = 256
	maxCUDA    = 256 // bytes of a handle
)

// Welcome answers Hello: the memory in which the engine has KV blocks, or stages them.
type Welcome struct {
	Version int `json:"version"`
	// Fingerprint is equal for engines that compute equal bytes for a block and lay them out alike.
	Fingerprint string   `json:"fingerprint"`
	Ranks       int      `json:"ranks"` // parallel ranks of the engine; 1 without parallelism
	Handles     []Handle `json:"handles"`
	Regions     []Region `json:"regions"` // the parts of a block, in their order
	Blocks      int      `json:"blocks"`  // numbered from 0
	Table       *Table   `json:"table,omitempty"`
}

// Kinds of handles.
const (
	// Memfd is host memory: a descriptor that can be mapped for reading and writing.
	Memfd = "memfd"
	// CUDA is memory of an NVIDIA GPU: Handle.CUDA, and a descriptor if it says so.
	CUDA = "cuda"
)

// Handle is one memory. Its descriptor, if it has one, comes with the welcome, in the order of the handles.
type Handle struct {
	Kind  string `json:"kind"`
	Bytes int64  `json:"bytes"`
	// CUDA says which memory it is. Its layout, with little-endian numbers, is
	//
	//	kind   u32         1: cuIpcOpenMemHandle opens the name;
	//	                   2: cuMemImportFromShareableHandle takes the descriptor
	//	0      u32
	//	id     16 bytes    random, unique to every memory
	//	GPU    16 bytes    UUID of the device that has the memory
	//	offset u64         of the memory in the allocation
	//	size   u64         of the allocation
	//	name   64 bytes    CUipcMemHandle of kind 1, else zeros
	CUDA []byte `json:"cuda,omitempty"` // in base64
	// Descriptor says that a descriptor comes with the handle; it does with a Memfd.
	Descriptor bool `json:"descriptor,omitempty"`
}

// HasDescriptor reports whether a descriptor comes with the handle.
func (h Handle) HasDescriptor() bool { return h.Kind == Memfd || h.Descriptor }

// Region is one part of every block: of one tensor, or of one rank.
type Region struct {
	Handle int   `json:"handle"` // number of the memory
	Rank   int   `json:"rank"`
	Offset int64 `json:"offset"` // of block 0
	Stride int64 `json:"stride"` // between blocks
	Bytes  int64 `json:"bytes"`
}

// Table describes the cache of an engine that shows the table of its blocks.
type Table struct {
	Model       string `json:"model"`
	BlockTokens int    `json:"block_tokens"` // tokens per block
	// TokenBytes is the size of a token's KV on the real engine that this one is or stands for, all ranks together: what
	// a link has to carry.
	TokenBytes int64 `json:"token_bytes"`
}

func (w *Welcome) validate() error {
	if err := errors.Join(checkVersion(w.Version), checkName("fingerprint", w.Fingerprint)); err != nil {
		return err
	}
	switch n := len(w.Handles); {
	case w.Blocks < 1 || w.Blocks > maxBlocks:
		return fmt.Errorf("%d blocks", w.Blocks)
	case w.Ranks < 1 || w.Ranks > maxRanks:
		return fmt.Errorf("%d ranks, must be 1 to %d", w.Ranks, maxRanks)
	case n < 1 || n > MaxHandles || len(w.Regions) < 1 || len(w.Regions) > maxRegions:
		return fmt.Errorf("%d handles and %d regions, must be 1 to %d and 1 to %d", n, len(w.Regions), MaxHandles, maxRegions)
	case w.Table != nil && (w.Table.BlockTokens < 1 || w.Table.BlockTokens > maxBlockTokens || w.Table.TokenBytes < 0 || w.Table.TokenBytes > maxBytes):
		return fmt.Errorf("table: blocks of %d tokens of %d bytes", w.Table.BlockTokens, w.Table.TokenBytes)
	}
	for i, h := range w.Handles {
		if h.Bytes < 1 || h.Bytes > maxBytes || h.Kind == CUDA && (len(h.CUDA) == 0 || len(h.CUDA) > maxCUDA) {
			return fmt.Errorf("handle %d of kind %.20q: %d bytes, described by %d", i, h.Kind, h.Bytes, len(h.CUDA))
		}
		if h.Kind != Memfd && h.Kind != CUDA {
			return fmt.Errorf("handle %d: kind %.20q: must be %s or %s", i, h.Kind, Memfd, CUDA)
		}
	}
	present := make([]bool, w.Ranks)
	for i, r := range w.Regions {
		if err := w.checkRegion(r); err != nil {
			return fmt.Errorf("region %d: %w", i, err)
		}
		present[r.Rank] = true
		for k, other := range w.Regions[:i] {
			if w.overlap(r, other) {
				return fmt.Errorf("region %d overlaps region %d in the memory of handle %d", i, k, r.Handle)
			}
		}
	}
	for rank, ok := range present {
		if !ok {
			return fmt.Errorf("rank %d of %d is missing: it has no region", rank, w.Ranks)
		}
	}
	return nil
}

func (w *Welcome) checkRegion(r Region) error {
	switch {
	case r.Handle < 0 || r.Handle >= len(w.Handles):
		return fmt.Errorf("handle %d of %d", r.Handle, len(w.Handles))
	case r.Rank < 0 || r.Rank >= w.Ranks:
		return fmt.Errorf("rank %d of %d", r.Rank, w.Ranks)
	case r.Offset < 0 || r.Bytes < 1 || r.Stride < r.Bytes || r.Stride > maxBytes || r.Offset > maxBytes:
		return fmt.Errorf("offset %d, stride %d, %d bytes: want offset ≥ 0 and stride ≥ bytes > 0", r.Offset, r.Stride, r.Bytes)
	}
	size, last := w.Handles[r.Handle].Bytes, int64(w.Blocks-1)
	if r.Bytes > size || r.Offset > size-r.Bytes || last > (size-r.Bytes-r.Offset)/r.Stride {
		return fmt.Errorf("block %d ends after the %d bytes of handle %d", last, size, r.Handle)
	}
	return nil
}

// overlap reports whether blocks of two valid regions may have bytes in common. Regions that lie between each other's
// blocks need equal strides.
func (w *Welcome) overlap(a, b Region) bool {
	end := func(r Region) int64 { return r.Offset + int64(w.Blocks-1)*r.Stride + r.Bytes }
	if a.Handle != b.Handle || end(a) <= b.Offset || end(b) <= a.Offset {
		return false
	}
	if a.Stride != b.Stride {
		return true
	}
	if a.Offset > b.Offset {
		a, b = b, a
	}
	gap := (b.Offset - a.Offset) % a.Stride
	return gap < a.Bytes || gap+b.Bytes > a.Stride
}
