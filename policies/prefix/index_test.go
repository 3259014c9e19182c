package prefix

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
)

// oracle is what an Index should know, kept as whole sequences of ids.
type oracle struct {
	blocks map[oracleKey]*oracleBlock
}

type oracleKey struct {
	engine uint64
	at     place
}

type oracleBlock struct {
	root Hash
	ids  []uint32 // from the beginning of the prompt
	refs int
}

// holds returns whether a block of the prompt ends at n.
func (o *oracle) holds(root Hash, ids []uint32, n int) bool {
	for _, b := range o.blocks {
		if b.root == root && slices.Equal(b.ids, ids[:n]) {
			return true
		}
	}
	return false
}

func (o *oracle) match(root Hash, ids []uint32, sizes []int) (known int) {
	for _, size := range sizes {
		for n := size; n < len(ids) && o.holds(root, ids, n); n += size {
			known = max(known, n)
		}
	}
	return known
}

func (o *oracle) matchSteps(root Hash, ids []uint32) (known int) {
	for n := int(StepTokens); n <= len(ids) && o.holds(root, ids, n); n += int(StepTokens) {
		known = n
	}
	return known
}

// engineOf makes the names of blocks as an engine may: they depend on all that a block
// depends on, and on the number of its group.
func engineOf(root Hash, ids []uint32, group uint8) uint64 {
	return uint64(root.Extend(ids...).Extend(uint32(group), 77)) * 31
}

// TestIndex applies random events, with duplicates, copies in other tiers, removals in any
// order, unknown parents and unknown removals, to an Index and to the oracle, and compares what
// they find of random prompts.
func TestIndex(t *testing.T) {
	sizes := [][]int{{16}, {256}, {512}, {96}, {64, 128}}
	hits := 0
	for seed := range uint64(testkit.Size(40, 400)) {
		rng := rand.New(rand.NewPCG(seed, 18))
		x, o := NewIndex(1<<20, seed), &oracle{blocks: map[oracleKey]*oracleBlock{}}
		var s Summary
		sizes := sizes[seed%uint64(len(sizes))]
		roots := []Hash{Root("m", "", ""), Root("m", "", "tenant"), Root("m", "lora", "")}
		type prompt struct {
			root Hash
			ids  []uint32
		}
		var prompts []prompt
		for range 80 {
			switch rng.IntN(12) {
			case 0:
				if rng.IntN(10) == 0 {
					x.Clear()
					clear(o.blocks)
				}
			case 1, 2, 3, 4, 5: // a prompt is computed from where some known prefix of it ends
				p := prompt{root: roots[rng.IntN(len(roots))]}
				if len(prompts) > 0 && rng.IntN(4) > 0 {
					p = prompts[rng.IntN(len(prompts))]
					p.ids = slices.Clone(p.ids[:rng.IntN(len(p.ids)+1)])
				}
				for range rng.IntN(6 * sizes[0]) {
					p.ids = append(p.ids, rng.Uint32N(2))
				}
				prompts = append(prompts, p)
				g := rng.IntN(len(sizes))
				storeOracle(rng, x, o, p.root, p.ids, sizes[g], uint8(g))
			default: // a copy of a random block is removed, or copied to the other tier
				keys := sortedKeys(o)
				if len(keys) == 0 {
					continue
				}
				k := keys[rng.IntN(len(keys))]
				if b := o.blocks[k]; rng.IntN(5) == 0 {
					at := oracleKey{k.engine, k.at ^ 1}
					x.Store(&Stored{Hashes: []uint64{k.engine}, Group: uint8(at.at >> 2), Tier: Tier(at.at & 3)})
					if c := o.blocks[at]; c != nil {
						c.refs++
					} else {
						o.blocks[at] = &oracleBlock{root: b.root, ids: b.ids, refs: 1}
					}
					continue
				}
				x.Remove(Removed{Hashes: []uint64{k.engine, 1}, Group: uint8(k.at >> 2), Tier: Tier(k.at & 3)})
				if b := o.blocks[k]; b.refs > 1 {
					b.refs--
				} else {
					delete(o.blocks, k)
				}
			}
			for range min(len(prompts), 6) {
				p := prompts[rng.IntN(len(prompts))]
				root := roots[rng.IntN(len(roots))]
				got, want := x.Match(root, p.ids), o.match(root, p.ids, sizes)
				if got != policies.Tokens(want) {
					t.Fatalf("seed %d: %d of %d tokens match, want %d", seed, got, len(p.ids), want)
				}
				steps := AppendSteps(nil, root, p.ids)
				got, want = x.MatchSteps(steps), o.matchSteps(root, p.ids)
				if got != policies.Tokens(want) {
					t.Fatalf("seed %d: %d of %d tokens match in steps, want %d", seed, got, len(p.ids), want)
				}
				x.Summarize(&s)
				if got := s.MatchSteps(steps); got < policies.Tokens(want) {
					t.Fatalf("seed %d: the summary finds %d of %d tokens, want %d", seed, got, len(p.ids), want)
				}
				hits += min(want, 1)
			}
		}
		// All that the engine ever stored is removed in the end, and nothing remains.
		for _, k := range sortedKeys(o) {
			for range o.blocks[k].refs {
				x.Remove(Removed{Hashes: []uint64{k.engine}, Group: uint8(k.at >> 2), Tier: Tier(k.at & 3)})
			}
		}
		if x.Summarize(&s); x.Len() != 0 || s.Tokens() != 0 || len(x.steps) != 0 {
			t.Fatalf("seed %d: %d blocks and %d steps are left", seed, x.Len(), len(x.steps))
		}
	}
	if hits < 100 {
		t.Errorf("only %d prompts had a step that was known: the test proves too little", hits)
	}
}

// storeOracle stores the blocks of a prompt that are not yet held, and sometimes one that is.
func storeOracle(rng *rand.Rand, x *Index, o *oracle, root Hash, ids []uint32, size int, group uint8) {
	begin := 0
	for begin+size <= len(ids) && o.blocks[oracleKey{engineOf(root, ids[:begin+size], group), placeOf(group, GPU)}] != nil {
		begin += size
	}
	if begin > 0 && rng.IntN(3) == 0 {
		begin -= size // computed by two requests at once
	}
	e := Stored{BlockTokens: size, Group: group, Root: root}
	if begin > 0 {
		e.HasParent, e.Parent, e.Root = true, engineOf(root, ids[:begin], group), 0
	}
	for end := begin + size; end <= len(ids); end += size {
		e.Hashes = append(e.Hashes, engineOf(root, ids[:end], group))
		e.Tokens = append(e.Tokens, ids[end-size:end]...)
	}
	if begin > 0 && o.blocks[oracleKey{e.Parent, placeOf(group, GPU)}] == nil {
		orphans := x.Counts().Orphans
		if x.findBlock(e.Parent) != 0 {
			return // it is in another tier
		}
		if x.Store(&e); x.Counts().Orphans != orphans+uint64(len(e.Hashes)) {
			panic("a block whose parent is unknown was added")
		}
		return
	}
	x.Store(&e)
	for i, h := range e.Hashes {
		k, end := oracleKey{h, placeOf(group, GPU)}, begin+(i+1)*size
		if b := o.blocks[k]; b != nil {
			b.refs++
		} else {
			o.blocks[k] = &oracleBlock{root: root, ids: slices.Clone(ids[:end]), refs: 1}
		}
	}
}

func sortedKeys(o *oracle) (keys []oracleKey) {
	for k := range o.blocks {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b oracleKey) int {
		switch {
		case a.engine < b.engine || a.engine == b.engine && a.at < b.at:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	return keys
}

// TestRefused checks that events that contradict themselves change nothing.
func TestRefused(t *testing.T) {
	x := NewIndex(100, 0)
	two := []uint64{1, 2}
	for _, e := range []Stored{
		{Hashes: two, Tokens: make([]uint32, 31), BlockTokens: 16},
		{Hashes: two, Tokens: make([]uint32, 48), BlockTokens: 16},
		{Hashes: two, Tokens: make([]uint32, 32), BlockTokens: 0},
		{Hashes: two, Tokens: make([]uint32, 32), BlockTokens: -16},
		{Hashes: two, Tokens: make([]uint32, 2*maxBlock+2), BlockTokens: maxBlock + 1},
		{Hashes: two, Tokens: make([]uint32, 32), BlockTokens: 16, Extra: []uint64{1}},
		{Hashes: two, Tokens: make([]uint32, 32), BlockTokens: 16, Group: MaxGroup + 1},
		{Hashes: two, Tokens: make([]uint32, 32), BlockTokens: 16, Tier: OtherTier + 1},
	} {
		before := x.Counts().Refused
		if x.Store(&e); x.Len() != 0 || x.Counts().Refused != before+2 {
			t.Errorf("%d ids in blocks of %d: %d blocks are held, %+v", len(e.Tokens), e.BlockTokens, x.Len(), x.Counts())
		}
	}
	for size := 1; size <= maxSizes+1; size++ {
		x.Store(&Stored{Hashes: []uint64{uint64(size)}, Tokens: make([]uint32, size), BlockTokens: size})
	}
	if x.Len() != maxSizes {
		t.Errorf("%d lengths of blocks, want %d at most", x.Len(), maxSizes)
	}
}

// TestExtra checks that what a block depends on besides its tokens distinguishes prompts, and
// what follows it, too.
func TestExtra(t *testing.T) {
	x, ids := NewIndex(100, 0), make([]uint32, 65)
	x.Store(&Stored{Hashes: []uint64{1, 2, 3, 4}, Tokens: ids[:64], BlockTokens: 16, Root: 7, Extra: []uint64{0, 5, 0, 0}})
	if got := x.Match(7, ids); got != 16 {
		t.Errorf("%d tokens of a prompt without the image match, want those before it", got)
	}
}

// TestOneName checks that a prompt that the engine stores under another name replaces the
// former one, and that the former one's removal then changes nothing.
func TestOneName(t *testing.T) {
	x, ids := NewIndex(100, 0), make([]uint32, 17)
	x.Store(&Stored{Hashes: []uint64{1}, Tokens: ids[:16], BlockTokens: 16})
	x.Store(&Stored{Hashes: []uint64{2}, Tokens: ids[:16], BlockTokens: 16})
	x.Remove(Removed{Hashes: []uint64{1}})
	if x.Len() != 1 || x.Match(0, ids) != 16 || x.Counts().Unknown != 1 {
		t.Errorf("%d blocks, %d tokens match, %+v", x.Len(), x.Match(0, ids), x.Counts())
	}
}

// TestAdd compares prompts that were sent, and share beginnings, with a search through all
// prompts before.
func TestAdd(t *testing.T) {
	const size = 64
	for seed := range uint64(testkit.Size(20, 200)) {
		rng := rand.New(rand.NewPCG(seed, 15))
		x := NewIndex(1<<20, seed)
		var all [][]uint32
		for range 60 {
			var ids []uint32
			if len(all) > 0 && rng.IntN(3) > 0 {
				before := all[rng.IntN(len(all))]
				ids = slices.Clone(before[:rng.IntN(len(before)+1)])
			}
			for range rng.IntN(300) {
				ids = append(ids, rng.Uint32N(3))
			}
			want := 0
			for _, b := range all {
				n := 0
				for n < min(len(b), len(ids)) && b[n] == ids[n] {
					n++
				}
				want = max(want, min(n, len(ids)-1)/size*size)
			}
			if got := x.Add(0, ids, size); got != policies.Tokens(want) {
				t.Fatalf("seed %d: %d of %d tokens known, want %d", seed, got, len(ids), want)
			}
			all = append(all, ids)
		}
	}
}

// TestCapacity checks what is forgotten first: prompts that were not sent again, and of each
// its end.
func TestCapacity(t *testing.T) {
	const size = 16
	prompt := func(first uint32, blocks int) []uint32 {
		ids := make([]uint32, blocks*size+1)
		ids[0] = first
		return ids
	}
	x := NewIndex(10, 1)
	x.Add(0, prompt(1, 4), size)
	x.Add(0, prompt(2, 4), size)
	x.Add(0, prompt(1, 4), size)
	x.Add(0, prompt(3, 4), size)
	if a, b, c := x.Match(0, prompt(1, 4)), x.Match(0, prompt(2, 4)), x.Match(0, prompt(3, 4)); a != 4*size || b != 2*size || c != 4*size {
		t.Errorf("%d, %d and %d tokens are known", a, b, c)
	}
	if x.Add(0, prompt(4, 20), size); x.Len() != 10 || x.Match(0, prompt(4, 20)) != 10*size {
		t.Errorf("%d tokens of a prompt that exceeds the capacity are known, in %d blocks", x.Match(0, prompt(4, 20)), x.Len())
	}
	if x.SetCapacity(3); x.Len() != 3 || x.Match(0, prompt(4, 20)) != 3*size {
		t.Errorf("%d tokens are known after the capacity shrank to 3 blocks", x.Match(0, prompt(4, 20)))
	}
	if x.Clear(); x.Len() != 0 || x.Match(0, prompt(4, 20)) != 0 {
		t.Error("a cleared index knows something")
	}
	if x.Add(0, prompt(5, 2), size); x.Match(0, prompt(5, 2)) != 2*size {
		t.Error("a cleared index learns nothing")
	}
}

// filled returns an Index of blocks of 16 tokens, 32 in a prompt, and a function that makes
// the n-th event of one more prompt.
func filled(blocks int) (*Index, func(e *Stored, n int)) {
	x := NewIndex(2*blocks, 1)
	e := Stored{Hashes: make([]uint64, 32), Tokens: make([]uint32, 32*16), BlockTokens: 16}
	next := func(e *Stored, n int) {
		for i := range e.Hashes {
			e.Hashes[i] = (uint64(n*32+i) + 1) * 0x9e3779b97f4a7c15
		}
		e.Tokens[0], e.Tokens[1] = uint32(n), uint32(n>>16)
	}
	for n := range blocks / 32 {
		next(&e, n)
		x.Store(&e)
	}
	return x, next
}

// TestBytes bounds the memory of an Index, at all sizes while it grows and as the Go runtime
// counts it.
func TestBytes(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x, next := filled(1 << 20)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if got := float64(after.HeapAlloc-before.HeapAlloc) / float64(x.Len()); x.Len() != 1<<20 || got > 64 {
		t.Errorf("%.1f bytes for each of %d blocks, want 64 at most", got, x.Len())
	} else {
		t.Logf("%.1f bytes a block", got)
	}
	runtime.KeepAlive(x)
	y := NewIndex(1<<20, 1)
	e := Stored{Hashes: make([]uint64, 32), Tokens: make([]uint32, 32*16), BlockTokens: 16}
	worst := 0.0
	for n := range 200_000 / 32 {
		next(&e, n)
		if y.Store(&e); y.Len() > 10_000 {
			worst = max(worst, float64(y.Bytes())/float64(y.Len()))
		}
	}
	if worst > 62 { // and 2 by the allocator's rounding
		t.Errorf("%.1f bytes for each block at some size", worst)
	}
}

// TestAllocs checks that events on a full Index allocate no memory.
func TestAllocs(t *testing.T) {
	x, next := filled(1 << 14)
	e := Stored{Hashes: make([]uint64, 32), Tokens: make([]uint32, 32*16), BlockTokens: 16}
	r := Removed{Hashes: make([]uint64, 32)}
	var s Summary
	x.Summarize(&s)
	n := 1 << 9
	run := func() {
		next(&e, n-1<<9)
		copy(r.Hashes, e.Hashes)
		x.Remove(r)
		next(&e, n)
		x.Store(&e)
		x.Match(0, e.Tokens)
		x.Summarize(&s)
		n++
	}
	for range 1 << 9 {
		run()
	}
	if allocs := testing.AllocsPerRun(1000, run); allocs > 0.1 {
		t.Errorf("%v allocations for each removed and each stored prompt", allocs)
	}
	if x.Len() != 1<<14 || x.Counts().Unknown != 0 {
		t.Errorf("%d blocks, %+v", x.Len(), x.Counts())
	}
}

// BenchmarkStore stores a batch of 1,000 blocks, or removes as many and stores them.
func BenchmarkStore(b *testing.B) {
	for i := range 4 {
		removed, size, name := i&1 != 0, 1<<20, "store"
		if removed {
			name = "remove and store"
		}
		if i&2 != 0 {
			size = 1 << 14
			name += " 16k"
		}
		b.Run(name, func(b *testing.B) {
			x, next := filled(size)
			batch := make([]Stored, 32)
			for i := range batch {
				batch[i] = Stored{Hashes: make([]uint64, 32), Tokens: make([]uint32, 32*16), BlockTokens: 16}
			}
			r, n, oldest := Removed{Hashes: make([]uint64, 32)}, size/32, 0
			scratch := Stored{Hashes: r.Hashes, Tokens: make([]uint32, 2)}
			remove := func() {
				for range batch {
					next(&scratch, oldest)
					x.Remove(r)
					oldest++
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for i := range batch {
					next(&batch[i], n)
					n++
				}
				if !removed {
					remove()
				}
				b.StartTimer()
				if removed {
					remove()
				}
				for i := range batch {
					x.Store(&batch[i])
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1.024, "µs/1000-blocks")
		})
	}
}

// BenchmarkMatch finds a prompt of 8,192 tokens in an Index of 1 M blocks.
func BenchmarkMatch(b *testing.B) {
	x, _ := filled(1 << 20)
	ids := make([]uint32, 8193)
	x.Add(9, ids, 16)
	b.ReportAllocs()
	for b.Loop() {
		if x.Match(9, ids) != 8192 {
			b.Fatal("not found")
		}
	}
}

func BenchmarkExtend(b *testing.B) {
	ids := make([]uint32, 16000)
	var h Hash
	for b.Loop() {
		h = h.Extend(ids...)
	}
}
