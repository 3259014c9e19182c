package kv

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestPool(t *testing.T) {
	p, err := NewPool(Layout{Blocks: 8, BlockTokens: 4, SlotBytes: 16, Regions: 1})
	testkit.NoError(t, err)
	for b := range Block(8) {
		for i := range 4 {
			s := p.Slot(b, i)
			if len(s) != 16 || s[0] != 0 {
				t.Fatalf("slot %d of block %d: %v", i, b, s)
			}
			for j := range s {
				s[j] = byte(b)*4 + byte(i)
			}
		}
	}
	for b := range Block(8) {
		for i := range 4 {
			for _, x := range p.Slot(b, i) {
				if x != byte(b)*4+byte(i) {
					t.Fatalf("slot %d of block %d overlaps another", i, b)
				}
			}
		}
	}
	testkit.NoError(t, p.Close())
	if err := p.Close(); err != nil {
		t.Error("second Close:", err)
	}
	for _, l := range []Layout{{}, {Blocks: 1, BlockTokens: 1, SlotBytes: 1}, {Blocks: 1 << 40, BlockTokens: 16, SlotBytes: 64, Regions: 1}} {
		if _, err := NewPool(l); err == nil {
			t.Errorf("layout %+v was accepted", l)
		}
	}
}

// books is the oracle of Blocks: it uses slices and linear search.
type books struct {
	refs  []int
	hash  []Hash
	order []Block // of registration
	free  []Block // least recently freed first
}

func (o *books) take() (Block, Hash, bool) {
	if len(o.free) == 0 {
		return 0, 0, false
	}
	b := o.free[0]
	o.free = o.free[1:]
	h := o.hash[b]
	o.refs[b], o.hash[b] = 1, 0
	o.order = slices.DeleteFunc(o.order, func(x Block) bool { return x == b })
	return b, h, true
}

func (o *books) register(b Block, h Hash) {
	if o.hash[b] == 0 {
		o.hash[b], o.order = h, append(o.order, b)
	}
}

func (o *books) find(h Hash) int {
	i := slices.IndexFunc(o.order, func(b Block) bool { return o.hash[b] == h })
	if i < 0 {
		return -1
	}
	return int(o.order[i])
}

func (o *books) reset() bool {
	if len(o.free) < len(o.refs) {
		return false
	}
	clear(o.hash)
	o.order = nil
	return true
}

func TestBlocksAgainstOracle(t *testing.T) {
	const n = 12
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b, o := NewBlocks(n), &books{refs: make([]int, n), hash: make([]Hash, n)}
		for i := range Block(n) {
			o.free = append(o.free, i)
		}
		var held [][]Block
		for range 300 {
			switch rng.IntN(5) {
			case 0: // a new sequence allocates some blocks
				var seq []Block
				for range 1 + rng.IntN(4) {
					got, evicted, ok := b.Take()
					want, forgotten, wok := o.take()
					if got != want || evicted != forgotten || ok != wok {
						t.Fatalf("seed %d: Take = %d %d %v, want %d %d %v", seed, got, evicted, ok, want, forgotten, wok)
					}
					if ok {
						seq = append(seq, got)
					}
				}
				held = append(held, seq)
			case 1: // a held block is full
				if len(held) == 0 {
					continue
				}
				for _, block := range held[rng.IntN(len(held))] {
					h := Hash(1 + rng.IntN(6))
					b.Register(block, h)
					o.register(block, h)
				}
			case 2: // a prefix hit
				h := Hash(1 + rng.IntN(6))
				got, ok := b.Find(h)
				want := o.find(h)
				if ok != (want >= 0) || ok && int(got) != want {
					t.Fatalf("seed %d: Find(%d) = %d %v, want %d", seed, h, got, ok, want)
				}
				if !ok {
					continue
				}
				if b.Used(got) != (o.refs[got] > 0) {
					t.Fatalf("seed %d: Used(%d) = %v", seed, got, b.Used(got))
				}
				b.Share(got)
				o.refs[got]++
				o.free = slices.DeleteFunc(o.free, func(x Block) bool { return x == got })
				held = append(held, []Block{got})
			case 3: // a sequence ends
				if len(held) == 0 {
					continue
				}
				i := rng.IntN(len(held))
				b.Release(held[i])
				for _, block := range slices.Backward(held[i]) {
					if o.refs[block]--; o.refs[block] == 0 {
						o.free = append(o.free, block)
					}
				}
				held = slices.Delete(held, i, i+1)
			case 4: // a reset, mostly of a pool in use
				if got, want := b.Reset(), o.reset(); got != want {
					t.Fatalf("seed %d: Reset = %v with %d free blocks", seed, got, b.Free())
				}
			}
			if b.Free() != len(o.free) || b.Total() != n {
				t.Fatalf("seed %d: %d free, want %d", seed, b.Free(), len(o.free))
			}
		}
	}
}

func TestReleaseWithoutReferencePanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("a block was freed twice")
		}
	}()
	b := NewBlocks(1)
	block, _, _ := b.Take()
	b.Release([]Block{block})
	b.Release([]Block{block})
}
