package move_test

import (
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// newStillEngine returns an engine whose requests generate only when the test calls for it.
func newStillEngine(t *testing.T, ids []uint32) (*engine, *seq) {
	t.Helper()
	e := newEngine()
	c := &legConn{wake: make(chan struct{}, 1)}
	testkit.NoError(t, e.prompt(c, "q#1", ids, len(ids), len(ids)+100))
	q := e.seqs["q#1"]
	e.generate(q)
	return e, q
}

// TestTextDependsOnEveryByte shows that the checks of this package can fail: if any byte of a
// request's KV changes, the next token changes too, so that a wrong, stale or missing block at the
// target changes the text.
func TestTextDependsOnEveryByte(t *testing.T) {
	ids := prompt(1, 30)
	want := func() uint32 {
		e, q := newStillEngine(t, ids)
		e.generate(q)
		return q.ids[len(q.ids)-1]
	}()
	_, q := newStillEngine(t, ids)
	for i := range (q.computed + blockTokens - 1) / blockTokens {
		for r := range layout.Regions {
			for b := range blockTokens * kvBytes {
				if i*blockTokens+b/kvBytes >= q.computed {
					continue // no token uses these bytes yet
				}
				e, q := newStillEngine(t, ids)
				e.memory.RegionBytes(q.blocks[i], r)[b] ^= 1
				e.generate(q)
				if got := q.ids[len(q.ids)-1]; got == want {
					t.Errorf("block %d, region %d, byte %d changes nothing", i, r, b)
				}
			}
		}
	}
	// Blocks in a different order, and one that was never filled.
	e, q := newStillEngine(t, ids)
	q.blocks[1], q.blocks[2] = q.blocks[2], q.blocks[1]
	e.generate(q)
	if q.ids[len(q.ids)-1] == want {
		t.Error("two blocks that are exchanged change nothing")
	}
	e, q = newStillEngine(t, ids)
	q.blocks[3] = e.allocate(1)[0]
	e.generate(q)
	if q.ids[len(q.ids)-1] == want {
		t.Error("a missing block changes nothing")
	}
}

// TestTransportsFeedTheText shows the same through a pull: with all its blocks a request continues
// unchanged, with an earlier version of one block it does not.
func TestTransportsFeedTheText(t *testing.T) {
	ids := prompt(2, 21)
	e, q := newStillEngine(t, ids)
	stale := slices.Clone(e.memory.Bytes)
	for range 6 {
		e.generate(q)
	}
	at := slices.Clone(q.ids)
	computed := q.computed
	table := e.table(q, 0)
	e.generate(q)
	want := q.ids[len(q.ids)-1]
	for _, broken := range []int{-1, len(table.Blocks) - 1} {
		d := newEngine()
		list := d.allocate(len(table.Blocks))
		for i, b := range list {
			from := e.memory
			if i == broken {
				from = &transport.Memory{Layout: layout, Bytes: stale}
			}
			for r := range layout.Regions {
				copy(d.memory.RegionBytes(b, r), from.RegionBytes(table.Blocks[i], r))
			}
		}
		x := &seq{conn: &legConn{wake: make(chan struct{}, 1)}, ids: slices.Clone(at), computed: computed, blocks: list, max: 100}
		d.generate(x)
		if got := x.ids[len(x.ids)-1]; (got == want) != (broken < 0) {
			t.Errorf("with block %d stale the next token is %d, unmoved it is %d", broken, got, want)
		}
	}
}
