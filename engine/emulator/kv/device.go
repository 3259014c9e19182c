package kv

import (
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Memory is where a pool's bytes are when they are on a device. It is safe for
// concurrent use.
type Memory interface {
	io.ReaderAt
	io.WriterAt
	// Share returns a handle by which other processes of the machine reach the
	// memory, and a descriptor if they need one, which the caller closes.
	Share() (handle []byte, f *os.File, err error)
	// Close frees the memory. Nobody uses it any more.
	io.Closer
}

// span is slots [from, to) of a block.
type span struct{ from, to int }

// most is how many blocks are read or written at a time.
const most = 256

// NewDevicePool is NewPool for a memory of at least l.Bytes, which the pool closes,
// also if it cannot be made.
//
// What is computed is written to the device when a block is full, or when somebody
// is about to be told of it (Flush); what others may have written is read from there
// (Load). Between the two Slot shows a copy in this process.
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

// Err is why the pool cannot be trusted any more: its device failed. It is safe for
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

// Changed says that slots [from, to) of a block, which has a reference, have been
// written through Slot.
func (p *Pool) Changed(b Block, from, to int) {
	if p.device == nil || from >= to {
		return
	}
	if s, ok := p.changed[b]; ok {
		from, to = min(from, s.from), max(to, s.to)
	}
	p.changed[b] = span{from, to}
}

// Forget drops what has changed in a block that is handed out anew.
func (p *Pool) Forget(b Block) { delete(p.changed, b) }

// Flush brings what has changed in blocks to the device, where others see it. Its
// error is also Err's.
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
	return p.runs(full, func(part []byte, at int64) error {
		_, err := p.device.WriteAt(part, at)
		return err
	})
}

// Load makes Slot show what blocks have on the device: others may have written it.
// Nothing has changed in them here. It is for any goroutine whose blocks nobody else
// uses. Its error is also Err's.
func (p *Pool) Load(blocks []Block) error {
	if p.device == nil {
		return nil
	}
	return p.runs(slices.Clone(blocks), func(part []byte, at int64) error {
		_, err := p.device.ReadAt(part, at)
		return err
	})
}

// runs sorts blocks, and calls f for each run of them that follow one another.
func (p *Pool) runs(blocks []Block, f func(part []byte, at int64) error) error {
	slices.Sort(blocks)
	size := p.BlockBytes()
	for len(blocks) > 0 {
		n := 1
		for n < min(len(blocks), most) && blocks[n] == blocks[0]+Block(n) {
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
