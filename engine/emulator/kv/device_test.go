package kv

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// card is device memory for a test. It counts the calls.
type card struct {
	bytes         []byte
	reads, writes int
	closed        int
	fail          error
}

func (c *card) ReadAt(b []byte, at int64) (int, error) {
	c.reads++
	return copy(b, c.bytes[at:]), c.fail
}

func (c *card) WriteAt(b []byte, at int64) (int, error) {
	c.writes++
	return copy(c.bytes[at:], b), c.fail
}

func (c *card) Share() ([]byte, *os.File, error) { return []byte("handle"), nil, nil }

func (c *card) Close() error {
	c.closed++
	return nil
}

func newDevicePool(t *testing.T) (*Pool, *card) {
	t.Helper()
	l := Layout{Blocks: 600, BlockTokens: 4, SlotBytes: 8, Regions: 1}
	c := &card{bytes: make([]byte, l.Bytes())}
	p, err := NewDevicePool(l, c)
	testkit.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p, c
}

// Changes reach the device once, in as few pieces as the gaps between blocks allow.
func TestDeviceFlush(t *testing.T) {
	p, c := newDevicePool(t)
	write := func(b Block, from, to int) {
		for i := from; i < to; i++ {
			p.Slot(b, i)[0] = byte(b) + byte(i)
		}
		p.Changed(b, from, to)
	}
	for _, b := range []Block{7, 5, 6, 9} { // two runs
		write(b, 0, 4)
	}
	write(20, 1, 2)
	write(20, 2, 3)
	if c.writes != 0 {
		t.Errorf("%d writes before a Flush", c.writes)
	}
	if err := p.Flush([]Block{9, 7, 6, 5, 20, 21}); err != nil || c.writes != 3 {
		t.Errorf("%d writes, %v", c.writes, err)
	}
	for _, s := range []struct{ b, i int }{{5, 0}, {7, 3}, {9, 1}, {20, 1}, {20, 2}} {
		if got := c.bytes[(s.b*4+s.i)*8]; got != byte(s.b+s.i) {
			t.Errorf("slot %d of block %d is %d", s.i, s.b, got)
		}
	}
	if err := p.Flush([]Block{5, 20}); err != nil || c.writes != 3 {
		t.Errorf("written again: %d writes, %v", c.writes, err)
	}
	write(30, 0, 2)
	p.Forget(30)
	if err := p.Flush([]Block{30}); err != nil || c.writes != 3 {
		t.Errorf("what a block had before is written: %d writes, %v", c.writes, err)
	}
	var all []Block
	for b := range Block(600) {
		write(b, 0, 4)
		all = append(all, b)
	}
	if err := p.Flush(all); err != nil || c.writes != 3+3 {
		t.Errorf("%d writes for 600 blocks, %v", c.writes, err)
	}
}

// Bytes that others have written become visible only with Load.
func TestDeviceLoad(t *testing.T) {
	p, c := newDevicePool(t)
	for i := range c.bytes {
		c.bytes[i] = byte(i)
	}
	list := []Block{4, 2, 3}
	if err := p.Load(list); err != nil || c.reads != 1 || !slices.Equal(list, []Block{4, 2, 3}) {
		t.Errorf("%d reads, %v, %v", c.reads, list, err)
	}
	if got := p.Slot(3, 1)[2]; got != byte((3*4+1)*8+2) {
		t.Errorf("%d is read", got)
	}
	if got := p.Slot(5, 0)[1]; got != 0 {
		t.Errorf("block 5 is read, too: %d", got)
	}
	if h, f, err := p.Share(); string(h) != "handle" || f != nil || err != nil {
		t.Errorf("%q, %v, %v", h, f, err)
	}
}

// Read returns what others have written and what was written here, and changes no copy.
func TestDeviceRead(t *testing.T) {
	p, c := newDevicePool(t)
	host, err := NewPool(p.Layout)
	testkit.NoError(t, err)
	defer host.Close()
	for i := range c.bytes {
		c.bytes[i] = byte(i % 251)
	}
	copy(host.mem, c.bytes)
	for _, pool := range []*Pool{p, host} {
		copy(pool.Slot(4, 1), "own slot")
		pool.Changed(4, 1, 2)
	}
	for name, list := range map[string][]Block{"none": nil, "runs": {7, 2, 3, 4, 2, 599}, "all": nil} {
		if name == "all" {
			for b := range Block(600) {
				list = append(list, b)
			}
		}
		c.reads = 0
		got, err := p.Read(list)
		want, bad := host.Read(list)
		if err != nil || bad != nil || !bytes.Equal(got, want) || len(got) != len(list)*p.BlockBytes() || len(list) > 0 && !bytes.Contains(got, []byte("own slot")) {
			t.Errorf("%s: %v, %v", name, err, bad)
		}
		if most := map[string]int{"runs": 4, "all": 3}[name]; c.reads > most {
			t.Errorf("%s: %d reads", name, c.reads)
		}
	}
	if got := p.Slot(7, 0)[1]; got != 0 {
		t.Errorf("the copy of block 7 has changed: %d", got)
	}
}

// A device that fails once is not used again, and is closed once.
func TestDeviceFails(t *testing.T) {
	p, c := newDevicePool(t)
	if err := p.Err(); err != nil {
		t.Error(err)
	}
	c.fail = errors.New("the GPU has fallen off the bus")
	for name, f := range map[string]func() error{
		"Load":          func() error { return p.Load([]Block{1}) },
		"Read":          func() error { _, err := p.Read([]Block{1}); return err },
		"Flush":         func() error { p.Changed(1, 0, 4); return p.Flush([]Block{1}) },
		"Flush of some": func() error { p.Changed(2, 0, 1); return p.Flush([]Block{2}) },
	} {
		if err := f(); !errors.Is(err, c.fail) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c.fail = nil
	if err := p.Load([]Block{1}); err != nil {
		t.Error(err)
	}
	if err := p.Err(); err == nil {
		t.Error("the failure is forgotten")
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil || c.closed != 1 {
		t.Errorf("closed %d times, %v", c.closed, err)
	}
	bad := &card{}
	if _, err := NewDevicePool(Layout{}, bad); err == nil || bad.closed != 1 {
		t.Errorf("a bad layout: %v, closed %d times", err, bad.closed)
	}
}

// With shared memory, none of this costs anything.
func TestHostPoolHasNoDevice(t *testing.T) {
	p, err := NewPool(Layout{Blocks: 8, BlockTokens: 4, SlotBytes: 8, Regions: 1})
	testkit.NoError(t, err)
	defer p.Close()
	blocks := []Block{3, 1}
	if n := testing.AllocsPerRun(100, func() {
		p.Changed(1, 0, 4)
		if errors.Join(p.Load(blocks), p.Flush(blocks)) != nil {
			t.Error("it fails")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if h, f, err := p.Share(); h != nil || f == nil || err != nil {
		t.Errorf("%q, %v, %v", h, f, err)
	}
}
