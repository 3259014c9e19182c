// Package kv is the emulator's KV cache: a paged pool of real bytes in shared or device memory,
// and the bookkeeping of free, shared and cached blocks.
//
// It knows nothing of sequences and tokens. Invariant: a block with references is never
// allocated again, and a block without references keeps its bytes until it is.
package kv

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Block is the number of a block of the pool.
type Block int32

// Layout is the layout of a pool. Pools that exchange bytes have equal BlockTokens, SlotBytes
// and Regions.
type Layout struct {
	Blocks      int // blocks in the pool
	BlockTokens int // slots per block
	SlotBytes   int // KV bytes per token that are really stored, in all regions
	// Regions is the number of parts of a block, one per emulated tensor-parallel rank; ≥ 1.
	Regions int
}

// BlockBytes returns the size of a block.
func (l Layout) BlockBytes() int { return l.BlockTokens * l.SlotBytes }

// Region locates the parts of one rank: that of block b starts at Offset + b·Stride and has
// Bytes bytes.
type Region struct{ Offset, Stride, Bytes int }

// Region returns the location of rank r's parts, 0 ≤ r < Regions. Blocks are stored one after
// the other, and ranks within each block: BlockBytes must be divisible by Regions.
func (l Layout) Region(r int) Region {
	part := l.BlockBytes() / l.Regions
	return Region{Offset: r * part, Stride: l.BlockBytes(), Bytes: part}
}

// Bytes returns the size of the pool.
func (l Layout) Bytes() int { return l.Blocks * l.BlockBytes() }

// maxPoolBytes bounds a pool: a larger one is a configuration error.
const maxPoolBytes = 1 << 40

func (l Layout) validate() error {
	switch {
	case l.Blocks <= 0 || l.BlockTokens <= 0 || l.SlotBytes <= 0 || l.Regions <= 0:
		return errors.New("KV layout: blocks, block tokens, slot bytes and regions must be positive")
	case l.Blocks > maxPoolBytes/l.BlockBytes():
		return fmt.Errorf("KV layout: %d blocks of %d bytes exceed %d bytes; store fewer bytes per token", l.Blocks, l.BlockBytes(), int64(maxPoolBytes))
	}
	return nil
}

// Pool is the memory, in a file descriptor that another process can map, or on a device
// (NewDevicePool). One goroutine owns its bytes; pages are allocated when first written.
type Pool struct {
	Layout
	file *os.File // nil: on a device
	mem  []byte

	device Memory // nil: in shared memory
	// changed are the slots that are in mem and not yet on the device.
	changed map[Block]span

	mu     sync.Mutex
	failed error // first failure of the device
}

// NewPool maps a zeroed pool. The caller closes it.
func NewPool(l Layout) (*Pool, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	file, err := sharedFile()
	if err != nil {
		return nil, fmt.Errorf("KV pool: %w", err)
	}
	if err := file.Truncate(int64(l.Bytes())); err != nil {
		return nil, errors.Join(fmt.Errorf("KV pool of %d bytes: %w", l.Bytes(), err), file.Close())
	}
	if err := seal(file); err != nil {
		return nil, errors.Join(fmt.Errorf("KV pool: %w", err), file.Close())
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, l.Bytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("KV pool: map %d bytes: %w", l.Bytes(), err), file.Close())
	}
	return &Pool{Layout: l, file: file, mem: mem}, nil
}

// Share returns what another process needs to access the memory: for shared memory a
// descriptor to map, which belongs to the pool, and no handle; for device memory the result
// of Memory.Share, whose descriptor the caller closes.
func (p *Pool) Share() (handle []byte, f *os.File, err error) {
	if p.device != nil {
		return p.device.Share()
	}
	return nil, p.file, nil
}

// Slot returns the KV bytes of the i-th token of a block. It must not be used after Close. On a
// device it is a copy: see Load, Changed and Flush.
func (p *Pool) Slot(b Block, i int) []byte {
	at := (int(b)*p.BlockTokens + i) * p.SlotBytes
	return p.mem[at : at+p.SlotBytes : at+p.SlotBytes]
}

// Close unmaps and frees the memory. The pool must not be in use.
func (p *Pool) Close() error {
	if p.mem == nil {
		return nil
	}
	err := unix.Munmap(p.mem)
	if p.file != nil {
		err = errors.Join(err, p.file.Close())
	}
	if p.device != nil {
		err = errors.Join(err, p.device.Close())
	}
	p.mem = nil
	return err
}
