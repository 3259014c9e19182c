package transporttest

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/transport"
)

// plainCopy returns the target's memory after a plan: its present bytes, except for the
// plan's blocks. Every transport is compared with this plain copy.
func plainCopy(before []byte, pair Pair, p transport.Plan) []byte {
	want := &transport.Memory{Layout: pair.Target.Memory.Layout, Bytes: slices.Clone(before)}
	for i := range p.Src {
		for r := range want.Regions {
			copy(want.RegionBytes(p.Dst[i], r), pair.Source.Memory.RegionBytes(p.Src[i], r))
		}
	}
	return want.Bytes
}

// requirePull pulls and compares the whole memory.
func (b *suite) requirePull(puller transport.Puller, p transport.Plan) {
	b.Helper()
	want := plainCopy(b.Target.read(), b.Pair, p)
	stats, err := puller.Pull(b.ctx(), p)
	if err != nil {
		b.Errorf("pull of %d blocks: %v", len(p.Src), err)
		return
	}
	if !bytes.Equal(b.Target.read(), want) {
		b.Errorf("pull of %d blocks: the memory differs from a plain copy", len(p.Src))
	}
	if bytes := int64(len(p.Src)) * b.Target.Memory.BlockBytes(); stats.Blocks != len(p.Src) || stats.Bytes != bytes || stats.Duration < 0 {
		b.Errorf("pull of %d blocks and %d bytes: %+v", len(p.Src), bytes, stats)
	}
}

func testShuffled(t *testing.T, b *suite) {
	for _, c := range []struct{ source, target transport.Layout }{{wide, narrow}, {narrow, wide}, {big, big}, {large, large}, {tiny, tiny}} {
		b.start(c.source, c.target)
		for seed := range uint64(3) {
			_, p := b.open()
			b.requirePull(p, b.plan(c.target.Blocks, seed))
			p.Close()
		}
	}
}

func testEmpty(t *testing.T, b *suite) {
	b.start(wide, narrow)
	_, p := b.open()
	defer p.Close()
	b.requirePull(p, transport.Plan{})
	b.requirePull(p, b.plan(1, 1))
	b.requirePull(p, transport.Plan{})
}

// testRounds checks that a puller serves many pulls, also of blocks that it pulled
// before.
func testRounds(t *testing.T, b *suite) {
	b.start(wide, narrow)
	_, p := b.open()
	defer p.Close()
	for seed := range uint64(20) {
		b.requirePull(p, b.plan(int(seed), seed))
	}
}

// testCorrupt checks that corrupt blocks are reported, that the others arrive, and that a
// second pull repairs them.
func testCorrupt(t *testing.T, b *suite) {
	for _, l := range []transport.Layout{wide, big} {
		b.start(l, l)
		_, puller := b.open()
		plan := b.plan(20, 3)
		bad := []int{0, 7, 19}
		for i, at := range bad { // one wrong checksum of a block is enough
			plan.Sums[at*len(l.Regions)+i%len(l.Regions)] ^= 1 << i
		}
		want := plainCopy(b.Target.read(), b.Pair, plan)
		_, err := puller.Pull(b.ctx(), plan)
		var corrupt *transport.CorruptError
		if !errors.As(err, &corrupt) || !slices.Equal(corrupt.Blocks, bad) {
			t.Errorf("pull: %v, want corrupt blocks %v", err, bad)
		}
		if !bytes.Equal(b.Target.read(), want) {
			t.Error("the memory differs from a plain copy")
		}
		again := transport.Plan{}
		for _, at := range bad {
			again.Src = append(again.Src, plan.Src[at])
			again.Dst = append(again.Dst, plan.Dst[at])
		}
		again.Sums = b.Source.Memory.Sums(nil, again.Src)
		b.requirePull(puller, again)
		puller.Close()
	}
}

// testBadPlans checks that an invalid plan writes nothing.
func testBadPlans(t *testing.T, b *suite) {
	b.start(wide, narrow)
	good := b.plan(2, 1)
	for name, spoil := range map[string]func(*transport.Plan){
		"source block out of range": func(p *transport.Plan) { p.Src = []uint32{0, uint32(wide.Blocks)} },
		"target block out of range": func(p *transport.Plan) { p.Dst = []uint32{0, uint32(narrow.Blocks)} },
		"huge block":                func(p *transport.Plan) { p.Src = []uint32{0, 1<<32 - 1} },
		"too few targets":           func(p *transport.Plan) { p.Dst = p.Dst[:1] },
		"too few sums":              func(p *transport.Plan) { p.Sums = p.Sums[:len(p.Sums)-1] },
		"no sums":                   func(p *transport.Plan) { p.Sums = nil },
	} {
		_, puller := b.open()
		plan := good
		spoil(&plan)
		before := slices.Clone(b.Target.read())
		if _, err := puller.Pull(b.ctx(), plan); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !bytes.Equal(before, b.Target.read()) {
			t.Errorf("%s: the memory changed", name)
		}
		puller.Close()
	}

	other := narrow
	other.Regions = slices.Clone(narrow.Regions)
	other.Regions[1].Bytes--
	b.start(wide, other)
	puller, err := b.Target.Transport.Open(b.ctx(), Receiver, b.export(b.grant("m")))
	if err == nil {
		_, err = puller.Pull(b.ctx(), transport.Plan{Src: []uint32{0}, Dst: []uint32{0}, Sums: []uint32{0, 0, 0}})
		puller.Close()
	}
	if err == nil {
		t.Error("a pull between pools with different regions succeeded")
	}
}

// testConcurrent pulls for several migrations at once, each with its own blocks.
func testConcurrent(t *testing.T, b *suite) {
	const moves, each = 8, 50
	b.start(large, large)
	want := b.plan(moves*each, 9)
	whole := plainCopy(b.Target.read(), b.Pair, want)
	var wg sync.WaitGroup
	for m := range moves {
		_, puller := b.open()
		wg.Go(func() {
			defer puller.Close()
			for i := m * each; i < (m+1)*each; i += 25 {
				plan := transport.Plan{Src: want.Src[i : i+25], Dst: want.Dst[i : i+25], Sums: want.Sums[2*i : 2*(i+25)]}
				if _, err := puller.Pull(b.ctx(), plan); err != nil {
					t.Errorf("migration %d: %v", m, err)
				}
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(b.Target.read(), whole) {
		t.Error("the memory differs from a plain copy")
	}
}

// RunAllocations checks that the allocations of a pull, at both ends, do not grow with
// its blocks. TLS cannot pass it: package crypto/tls allocates for each record.
func RunAllocations(t *testing.T, make func(t *testing.T, source, target transport.Layout) Pair) {
	if raced {
		t.Skip("the race detector allocates")
	}
	b := &suite{T: t, make: make}
	b.start(large, large)
	defer b.stop()
	_, puller := b.open()
	defer puller.Close()
	ctx := b.ctx()
	allocs := func(blocks int) float64 {
		plan := b.plan(blocks, 1)
		return testing.AllocsPerRun(20, func() {
			if _, err := puller.Pull(ctx, plan); err != nil {
				t.Error(err)
			}
		})
	}
	const few, slack = 4, 4
	if one, all := allocs(few), allocs(large.Blocks); all > one+slack {
		t.Errorf("a pull of %d blocks allocates %.0f times, one of %d blocks %.0f times", large.Blocks, all, few, one)
	}
}
