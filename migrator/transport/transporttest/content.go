package transporttest

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

func testShuffled(t *testing.T, b *suite) {
	for _, c := range []struct {
		source, target transport.Layout
		plans          uint64 // large pools have three with CASCADE_TEST_ALL
	}{{wide, narrow, 3}, {narrow, wide, 3}, {big, big, 1}, {large, large, 1}, {tiny, tiny, 1}} {
		if os.Getenv("CASCADE_TEST_ALL") != "" {
			c.plans = 3
		}
		b.start(c.source, c.target)
		for seed := range c.plans {
			p := b.Open()
			b.RequirePull(p, b.Plan(c.target.Blocks, seed))
			p.Close()
		}
	}
}

// testRounds checks that a puller serves many pulls, also of blocks that it pulled
// before, and of none.
func testRounds(t *testing.T, b *suite) {
	b.start(wide, narrow)
	p := b.Open()
	defer p.Close()
	for seed := range uint64(20) {
		b.RequirePull(p, b.Plan(int(seed*(seed%3)), seed)) // every third one is empty
	}
}

// testCorrupt checks that corrupt blocks are reported, that the others arrive, and that a
// second pull repairs them.
func testCorrupt(t *testing.T, b *suite) {
	for _, l := range []transport.Layout{wide, big} {
		b.start(l, l)
		puller := b.Open()
		plan := b.Plan(20, 3)
		bad := []int{0, 7, 19}
		for i, at := range bad { // one wrong checksum of a block is enough
			plan.Sums[at*len(l.Regions)+i%len(l.Regions)] ^= 1 << i
		}
		want := plainCopy(b.Target.Read(), b.Pair, plan)
		_, err := b.Pull(puller, plan)
		var corrupt *transport.CorruptError
		if !errors.As(err, &corrupt) || !slices.Equal(corrupt.Blocks, bad) {
			t.Errorf("pull: %v, want corrupt blocks %v", err, bad)
		}
		if !bytes.Equal(b.Target.Read(), want) {
			t.Error("the memory differs from a plain copy")
		}
		again := transport.Plan{}
		for _, at := range bad {
			again.Src = append(again.Src, plan.Src[at])
			again.Dst = append(again.Dst, plan.Dst[at])
		}
		again.Sums = b.Source.Memory.Sums(nil, again.Src)
		b.RequirePull(puller, again)
		puller.Close()
	}
}

// testBadPlans checks that an invalid plan writes nothing.
func testBadPlans(t *testing.T, b *suite) {
	b.start(wide, narrow)
	good := b.Plan(2, 1)
	for name, spoil := range map[string]func(*transport.Plan){
		"source block out of range": func(p *transport.Plan) { p.Src = []uint32{0, uint32(wide.Blocks)} },
		"target block out of range": func(p *transport.Plan) { p.Dst = []uint32{0, uint32(narrow.Blocks)} },
		"huge block":                func(p *transport.Plan) { p.Src = []uint32{0, 1<<32 - 1} },
		"too few targets":           func(p *transport.Plan) { p.Dst = p.Dst[:1] },
		"too few sums":              func(p *transport.Plan) { p.Sums = p.Sums[:len(p.Sums)-1] },
		"no sums":                   func(p *transport.Plan) { p.Sums = nil },
	} {
		puller := b.Open()
		plan := good
		spoil(&plan)
		before := slices.Clone(b.Target.Read())
		if _, err := b.Pull(puller, plan); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !bytes.Equal(before, b.Target.Read()) {
			t.Errorf("%s: the memory changed", name)
		}
		puller.Close()
	}

	other := narrow
	other.Regions = slices.Clone(narrow.Regions)
	other.Regions[1].Bytes--
	b.start(wide, other)
	puller, err := b.OpenOffer(Receiver, b.Export(b.Grant()))
	if err == nil {
		_, err = b.Pull(puller, transport.Plan{Src: []uint32{0}, Dst: []uint32{0}, Sums: []uint32{0, 0, 0}})
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
	want := b.Plan(moves*each, 9)
	whole := plainCopy(b.Target.Read(), b.Pair, want)
	var wg sync.WaitGroup
	for m := range moves {
		puller := b.Open()
		wg.Go(func() {
			defer puller.Close()
			for i := m * each; i < (m+1)*each; i += 25 {
				plan := transport.Plan{Src: want.Src[i : i+25], Dst: want.Dst[i : i+25], Sums: want.Sums[2*i : 2*(i+25)]}
				if _, err := b.Pull(puller, plan); err != nil {
					t.Errorf("migration %d: %v", m, err)
				}
			}
		})
	}
	wg.Wait()
	if !bytes.Equal(b.Target.Read(), whole) {
		t.Error("the memory differs from a plain copy")
	}
}

// RunAllocations checks that the allocations of a pull, at both ends, do not grow with
// its blocks. TLS cannot pass it: package crypto/tls allocates for each record.
func RunAllocations(t *testing.T, make func(t *testing.T, source, target transport.Layout) Pair) {
	testkit.SkipUnderRace(t)
	b := &suite{T: t, make: make}
	b.start(large, large)
	defer b.Stop()
	puller := b.Open()
	defer puller.Close()
	ctx := t.Context()
	allocs := func(blocks int) float64 {
		plan := b.Plan(blocks, 1)
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
