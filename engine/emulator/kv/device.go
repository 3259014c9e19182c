package kv

import (
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Memory is a pool's memory on a device. It is safe for concurrent use.
type Memory interface {
	io.ReaderAt
	io.WriterAt
	// Share returns a handle with which other processes of the host access the memory, and a
	// descriptor if they need one, which the caller closes.
	Share() (handle []byte, f *os.File, err error)
	// Close frees the memory. It must not be used any more.
	io.Closer
}

// span is the slots [from, to) of a block.
type span struct{ from, to int }

// maxRun is the maximum number of blocks that are read or written at a time.
const maxRun = 256

// NewDevicePool is NewPool for a memory of at least l.Bytes, which the pool closes, even if
// NewDevicePool fails.
//
// Computed slots are written to the device when a block is full, or by Flush before the block
// is listed; slots that other processes have written are read by Load. In between Slot is a
// copy in this process.
func NewDevicePool(l Layout, m Memory) (*Pool, error) {
	if err := l.validate(); err != nil {
		m.Close()
		return nil, err
	}
	mem, err := unix.Mmap(-1, 0, l.Bytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("KV pool: copy of %d bytes: %w", l.Bytes(), err)
	}
	return &Pool{Layout: l, mem: mem, device: m, changed: make(map[Block]span)}, nil
}

// Err returns why the pool must not be used any more: its device failed. It is safe for
// concurrent use.
func (p *Pool) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

func (p *Pool) fail(err error) error {
	if err == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		p.failed = fmt.Errorf("KV pool: %w", err)
	}
	return p.failed
}

// Changed records that slots [from, to) of a block with a reference were written through Slot.
func (p *Pool) Changed(b Block, from, to int) {
	if p.device == nil || from >= to {
		return
	}
	if s, ok := p.changed[b]; ok {
		from, to = min(from, s.from), max(to, s.to)
	}
	p.changed[b] = span{from, to}
}

// Forget discards the changes of a block that is allocated anew.
func (p *Pool) Forget(b Block) { delete(p.changed, b) }

// Flush writes the changes of blocks to the device, where other processes see them. Its error is
// also returned by Err.
func (p *Pool) Flush(blocks []Block) error {
	if len(p.changed) == 0 {
		return nil
	}
	var full []Block
	for _, b := range blocks {
		s, ok := p.changed[b]
		switch {
		case !ok:
			continue
		case s.from == 0 && s.to == p.BlockTokens:
			full = append(full, b)
		default:
			at := int(b)*p.BlockBytes() + s.from*p.SlotBytes
			if _, err := p.device.WriteAt(p.mem[at:][:(s.to-s.from)*p.SlotBytes], int64(at)); err != nil {
				return p.fail(err)
			}
		}
		delete(p.changed, b)
	}
	return p.forEachRun(full, func(part []byte, at int64) error {
		_, err := p.device.WriteAt(part, at)
		return err
	})
}

// Load copies blocks, which must have no changes here, from the device to Slot, after other
// processes may have written them. It may be called on any goroutine while no other uses the
// blocks. Its error is also returned by Err.
func (p *Pool) Load(blocks []Block) error {
	if p.device == nil {
		return nil
	}
	return p.forEachRun(slices.Clone(blocks), func(part []byte, at int64) error {
		_, err := p.device.ReadAt(part, at)
		return err
	})
}

// Read returns the bytes of blocks, one after the other, as other processes see them: with
// what was written here, and on a device also with what others have written. Its error is
// also returned by Err.
func (p *Pool) Read(blocks []Block) ([]byte, error) {
	if err := p.Flush(blocks); err != nil {
		return nil, err
	}
	size := p.BlockBytes()
	out := make([]byte, len(blocks)*size)
	for i := 0; i < len(blocks); {
		n := 1
		for i+n < len(blocks) && n < maxRun && blocks[i+n] == blocks[i]+Block(n) {
			n++
		}
		part, at := out[i*size:][:n*size], int(blocks[i])*size
		if p.device == nil {
			copy(part, p.mem[at:])
		} else if _, err := p.device.ReadAt(part, int64(at)); err != nil {
			return nil, p.fail(err)
		}
		i += n
	}
	return out, nil
}

// forEachRun sorts blocks and calls f for each run of consecutive ones.
func (p *Pool) forEachRun(blocks []Block, f func(part []byte, at int64) error) error {
	slices.Sort(blocks)
	size := p.BlockBytes()
	for len(blocks) > 0 {
		n := 1
		for n < min(len(blocks), maxRun) && blocks[n] == blocks[0]+Block(n) {
			n++
		}
		at := int(blocks[0]) * size
		if err := f(p.mem[at:][:n*size], int64(at)); err != nil {
			return p.fail(err)
		}
		blocks = blocks[n:]
	}
	return nil
}
