// Package kv is the emulator's KV cache: a paged pool of real bytes in shared
// memory or in a device's, and the bookkeeping of which block is free, shared or
// cached.
//
// It knows nothing of sequences and tokens. Its invariant: a block with
// references is never handed out again, and a block without references keeps
// its bytes until it is.
package kv

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Block numbers a block of the pool.
type Block int32

// Layout is the shape of a pool. Two pools whose bytes may be exchanged have
// equal BlockTokens, SlotBytes and Regions.
type Layout struct {
	Blocks      int // blocks in the pool
	BlockTokens int // slots per block
	SlotBytes   int // KV bytes per token that are really stored, over all regions
	// Regions is how many parts a block's bytes are divided into, one per
	// tensor-parallel rank that they stand for; ≥ 1.
	Regions int
}

// BlockBytes is the size of a block.
func (l Layout) BlockBytes() int { return l.BlockTokens * l.SlotBytes }

// Region is where the parts of one rank lie: that of block b begins at
// Offset + b·Stride and is Bytes long.
type Region struct{ Offset, Stride, Bytes int }

// Region returns the place of rank r's parts, 0 ≤ r < Regions. The blocks lie
// one after the other, and within each the ranks: BlockBytes must be divisible
// by Regions.
func (l Layout) Region(r int) Region {
	part := l.BlockBytes() / l.Regions
	return Region{Offset: r * part, Stride: l.BlockBytes(), Bytes: part}
}

// Bytes is the size of the pool.
func (l Layout) Bytes() int { return l.Blocks * l.BlockBytes() }

// maxPoolBytes bounds a pool: beyond it the configuration is a mistake.
const maxPoolBytes = 1 << 40

func (l Layout) validate() error {
	switch {
	case l.Blocks <= 0 || l.BlockTokens <= 0 || l.SlotBytes <= 0 || l.Regions <= 0:
		return errors.New("KV layout: blocks, block tokens, slot bytes and regions must be positive")
	case l.Blocks > maxPoolBytes/l.BlockBytes():
		return fmt.Errorf("KV layout: %d blocks of %d bytes are more than %d bytes; store fewer bytes per token", l.Blocks, l.BlockBytes(), int64(maxPoolBytes))
	}
	return nil
}

// Pool is the memory. It lives in a file descriptor that another process can
// map, or on a device (NewDevicePool). Its bytes are owned by whoever drives it, one
// goroutine; pages take memory when they are first written.
type Pool struct {
	Layout
	file *os.File // nil: on a device
	mem  []byte

	device Memory // nil: in shared memory
	// changed are slots of blocks that are in mem and not yet on the device.
	changed map[Block]span

	mu     sync.Mutex
	failed error // of the device, the first one
}

// NewPool maps a pool, all zero. The caller closes it.
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

// Share is what another process needs to reach the memory. In shared memory it is
// a descriptor that can be mapped, which belongs to the pool, and no handle; on a
// device, what the device's Memory says, whose descriptor the caller closes.
func (p *Pool) Share() (handle []byte, f *os.File, err error) {
	if p.device != nil {
		return p.device.Share()
	}
	return nil, p.file, nil
}

// Slot is the KV bytes of the i-th token of a block. It must not be used
// after Close. On a device it is a copy: see Load, Changed and Flush.
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
