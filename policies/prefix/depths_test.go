package prefix

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// talk is a synthetic workload: keys of its prompts at each level.
type talk func(rng *rand.Rand) []uint64

// hashesOf returns hashes of a prompt of that many bytes, which is equal to others of its
// instructions up to shared bytes, of its document up to document bytes, and of its
// conversation beyond.
func hashesOf(size, shared, document int, instructions, doc, conversation uint64) (out []uint64) {
	for depth := MinDepth; depth <= size && len(out) < DepthLevels; depth *= 2 {
		id := instructions
		if depth > shared {
			id = id*1_000_003 + doc + 1
		}
		if depth > document {
			id = id*1_000_003 + conversation + 1
		}
		out = append(out, id*0x9e3779b97f4a7c15+uint64(depth))
	}
	return out
}

// TestDepths checks the depths that are chosen for workloads whose right depth is evident.
func TestDepths(t *testing.T) {
	for _, c := range []struct {
		name     string
		talk     talk
		min, max int // bytes
	}{
		{"nothing is shared", func(rng *rand.Rand) []uint64 {
			return hashesOf(300+rng.IntN(40000), 0, 0, 0, 0, rng.Uint64())
		}, 0, 0},
		{"nothing but instructions is shared", func(rng *rand.Rand) []uint64 {
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64())
		}, 0, 0},
		{"conversations without instructions", func(rng *rand.Rand) []uint64 {
			return hashesOf(300+rng.IntN(40000), 0, 0, 0, 0, rng.Uint64N(1000))
		}, 256, 1024}, // they cost the same within two per cent
		{"all share 3 KB of instructions", func(rng *rand.Rand) []uint64 {
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64N(2000))
		}, 4096, 4096},
		{"most share 3 KB of instructions", func(rng *rand.Rand) []uint64 {
			if rng.IntN(4) == 0 {
				return hashesOf(5000, 0, 0, 1, 0, rng.Uint64N(2000))
			}
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64N(2000))
		}, 4096, 4096},
		{"questions about 200 documents, after 1 KB of instructions", func(rng *rand.Rand) []uint64 {
			return hashesOf(30000, 1000, 20000, 0, rng.Uint64N(200), rng.Uint64())
		}, 1024, 16384},
		{"half of the requests are one prompt, the rest share 3 KB", func(rng *rand.Rand) []uint64 {
			if rng.IntN(2) == 0 {
				return hashesOf(20000, 1<<20, 1<<20, 7, 0, 0)
			}
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64N(400))
		}, 4096, 4096},
		{"one prompt is half of the requests and nearly all the work", func(rng *rand.Rand) []uint64 {
			if rng.IntN(2) == 0 {
				return hashesOf(200_000, 1<<20, 1<<20, 7, 0, 0)
			}
			return hashesOf(5000+rng.IntN(10000), 3000, 3000, 0, 0, rng.Uint64N(400))
		}, 0, 0},
		{"conversations that grow", func(rng *rand.Rand) []uint64 {
			return hashesOf((1+rng.IntN(15))*3000, 1500, 1500, 0, 0, rng.Uint64N(300))
		}, 2048, 4096}, // the shortest prompts are hardly any work
		{"all prompts are equal", func(*rand.Rand) []uint64 { return hashesOf(20000, 1<<20, 1<<20, 0, 0, 0) }, 0, 0},
		{"most prompts end before they differ", func(rng *rand.Rand) []uint64 {
			return hashesOf(2000+rng.IntN(3000), 4000, 4000, 0, 0, rng.Uint64())
		}, 0, 0},
		{"agents' instructions of 50 KB", func(rng *rand.Rand) []uint64 {
			return hashesOf(45_000+rng.IntN(200_000), 50_000, 50_000, 0, 0, rng.Uint64N(60))
		}, 65536, 65536},
		{"agents' instructions of 100 KB", func(rng *rand.Rand) []uint64 {
			return hashesOf(110_000+rng.IntN(200_000), 100_000, 100_000, 0, 0, rng.Uint64N(60))
		}, 131072, 131072},
		{"a fifth of the requests are agents', the others are short", func(rng *rand.Rand) []uint64 {
			if rng.IntN(5) == 0 {
				return hashesOf(60_000+rng.IntN(200_000), 50_000, 50_000, 1, 0, rng.Uint64N(60))
			}
			return hashesOf(300+rng.IntN(5000), 0, 0, 0, 0, rng.Uint64N(500))
		}, 65536, 65536},
		{"a third of the requests share 3 KB, the others nothing", func(rng *rand.Rand) []uint64 {
			shared := 3000 * (rng.IntN(3) / 2)
			return hashesOf(5000+rng.IntN(5000), shared, shared, 0, 0, rng.Uint64())
		}, 0, 0},
		{"four tenths of the requests share four sets of instructions, the others nothing", func(rng *rand.Rand) []uint64 {
			which := rng.IntN(10)
			shared := 3000 * ((13 - which) / 10)
			return hashesOf(5000+rng.IntN(5000), shared, shared, uint64(which), 0, rng.Uint64())
		}, 0, 0},
		{"most requests are agents', some are short", func(rng *rand.Rand) []uint64 {
			if rng.IntN(5) > 0 {
				return hashesOf(60_000+rng.IntN(200_000), 50_000, 50_000, 1, 0, rng.Uint64N(60))
			}
			return hashesOf(300+rng.IntN(5000), 0, 0, 0, 0, rng.Uint64N(500))
		}, 65536, 65536},
	} {
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(seed, 18))
			var fleet Depths
			var parts [4]Depths
			depth, changes, wanted := 0, 0, 1
			if c.max == 0 {
				wanted = 0
			}
			for n := range 10_000 {
				parts[n%4].Observe(c.talk(rng))
				if n%50 == 49 && n < 1000 || n%1000 == 999 {
					fleet = Depths{}
					for i := range parts {
						fleet.Merge(&parts[i])
					}
					if next := fleet.Choose(depth); next != depth {
						depth = next
						changes++
					}
				}
			}
			if depth < c.min || depth > c.max || changes != wanted {
				t.Errorf("%s, seed %d: %d bytes after %d changes, want %d to %d after %d", c.name, seed, depth, changes, c.min, c.max, wanted)
			}
		}
	}
}

// TestDepthFollowsTraffic checks that the depth changes with the traffic, and not before few
// prompts were seen.
func TestDepthFollowsTraffic(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 18))
	var d Depths
	for range minPrompts - 1 {
		d.Observe(hashesOf(9000, 3000, 3000, 0, 0, rng.Uint64N(20)))
	}
	if d.Observe(nil); d.Choose(512) != 512 || d.Prompts() != minPrompts-1 {
		t.Errorf("%d bytes are chosen by %d prompts", d.Choose(512), d.Prompts())
	}
	d.Observe(hashesOf(9000, 3000, 3000, 0, 0, rng.Uint64N(20)))
	if d.Choose(512) != 4096 || d.Choose(8192) != 8192 || d.Choose(1<<16) != 4096 || d.Choose(777) != 4096 || d.Choose(0) != 4096 {
		t.Errorf("%d, %d, %d, %d and %d bytes are chosen", d.Choose(512), d.Choose(8192), d.Choose(1<<16), d.Choose(777), d.Choose(0))
	}
	// Longer instructions come into use.
	for range 4 * maxPrompts {
		d.Observe(hashesOf(20000, 10000, 10000, 1, 0, rng.Uint64N(20)))
	}
	if got := d.Choose(4096); got != 16384 {
		t.Errorf("%d bytes are chosen after the instructions became longer", got)
	}
	// Prompts become too short for the depth, and then all equal.
	for range 4 * maxPrompts {
		d.Observe(hashesOf(9000, 3000, 3000, 1, 0, rng.Uint64N(20)))
	}
	if got := d.Choose(16384); got != 4096 {
		t.Errorf("%d bytes are chosen after the prompts became shorter", got)
	}
	for range 4 * maxPrompts {
		d.Observe(hashesOf(9000, 1<<20, 1<<20, 1, 0, 0))
	}
	if got := d.Choose(4096); got != 0 {
		t.Errorf("%d bytes are chosen of equal prompts", got)
	}
}

// TestHalvedCounts checks that forgetting does not make prompts with few others of their key look
// like prompts without any: keys that pay just before it pay after it.
func TestHalvedCounts(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 18))
		var d Depths
		for range maxPrompts {
			d.Observe(hashesOf(9000, 0, 0, 0, 0, rng.Uint64N(maxPrompts/3)))
		}
		before := d.squares(0) - int64(d.alone[0])
		d.halve()
		if after := 4 * (d.squares(0) - int64(d.alone[0])); after < before*9/10 || after > before*11/10 {
			t.Errorf("seed %d: %d pairs before, %d after", seed, before, after)
		}
		if d.Choose(MinDepth) != MinDepth {
			t.Errorf("seed %d: keys do not pay any more", seed)
		}
	}
}

// TestRoundedCounts checks that halving loses no more than three quarters of the squares, on average.
func TestRoundedCounts(t *testing.T) {
	const fleets = 50
	pairs, alone := int64(0), int64(0)
	for seed := range uint64(fleets) {
		rng := rand.New(rand.NewPCG(seed, 18))
		var d Depths
		for range maxPrompts {
			d.Observe([]uint64{rng.Uint64()})
		}
		d.halve()
		pairs, alone = pairs+d.squares(0)-int64(d.alone[0]), alone+int64(d.alone[0])
	}
	if bias := float64(pairs) / float64(alone); math.Abs(bias) > 0.05 {
		t.Errorf("prompts that share no key have %.0f %% of a prompt in common, on average", 100*bias)
	}
}

// FuzzDepths checks that whatever is decoded is encoded as the same counts, and can be used.
func FuzzDepths(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 18))
	var d Depths
	for range 3 {
		b, _ := d.AppendBinary(nil)
		f.Add(b)
		for range 600 {
			d.Observe(hashesOf(rng.IntN(40000), 3000, 9000, 0, 1, rng.Uint64()))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d := Depths{prompts: 1}
		if d.UnmarshalBinary(b) != nil {
			if d.prompts != 1 {
				t.Error("refused bytes changed something")
			}
			return
		}
		again, _ := d.AppendBinary(nil)
		var same Depths
		if err := same.UnmarshalBinary(again); err != nil || same != d {
			t.Errorf("decoded, encoded and decoded it differs: %v", err)
		}
		if d.Merge(&same); d.Prompts() != 2*same.Prompts() {
			t.Errorf("%d prompts of two times %d", d.Prompts(), same.Prompts())
		}
		if got := d.Choose(0); got != 0 && (got < MinDepth || got > MinDepth<<(DepthLevels-1)) {
			t.Errorf("%d bytes are chosen", got)
		}
	})
}

// TestMalformedDepths refuses each number that no fleet counts, and names other versions as such.
func TestMalformedDepths(t *testing.T) {
	form := func(edit func(d *Depths)) []byte {
		d := Depths{prompts: 2 * maxPrompts, untokenized: 2, reached: [DepthLevels]uint32{2}}
		edit(&d)
		b, _ := d.AppendBinary(nil)
		return b
	}
	sound := form(func(*Depths) {})
	// counts has work of 1000, no squares, the counts given, and nothing in all other places.
	counts := func(counts ...int64) []byte {
		b := append([]byte{depthsForm}, 0x80, 0x40, 0, 0xe8, 7, 0) // 8192 prompts, 1000
		for _, c := range counts {
			b = binary.AppendVarint(b, c)
		}
		return append(b, make([]byte, DepthLevels*(2+depthCounters)-2-len(counts))...)
	}
	version := func(v byte) []byte { return append([]byte{v}, sound[1:]...) }
	for name, c := range map[string]struct {
		form []byte
		want error
	}{
		"the largest number of prompts":   {sound, nil},
		"no bytes":                        {nil, ErrDepths},
		"an older version":                {version(depthsForm - 1), ErrDepthsVersion},
		"a newer version":                 {version(depthsForm + 1), ErrDepthsVersion},
		"too many prompts":                {form(func(d *Depths) { d.prompts++ }), ErrDepths},
		"more untokenized work":           {form(func(d *Depths) { d.untokenized++ }), ErrDepths},
		"untokenized work above 32 bits":  {slices.Concat([]byte{depthsForm}, binary.AppendUvarint(nil, maxPrompts), binary.AppendUvarint(nil, 1<<32), form(func(d *Depths) { d.prompts, d.untokenized = 0, 0 })[3:]), ErrDepths},
		"more work than prompts":          {form(func(d *Depths) { d.prompts, d.reached[0] = 1, maxWork+1 }), ErrDepths},
		"squares of more work":            {form(func(d *Depths) { d.alone[0] = 2*maxWork + 1 }), ErrDepths},
		"counts of more work":             {form(func(d *Depths) { d.counts[0][0], d.counts[0][9] = 2, -(depthCounters + 1) }), ErrDepths},
		"counts that halving has rounded": {form(func(d *Depths) { d.counts[0][0], d.counts[0][9] = 2, -depthCounters }), nil},
		"counts of all work":              {counts(300, -700), nil},
		"a count above 32 bits":           {counts(1 << 32), ErrDepths},
		"a count that hides larger ones":  {counts(300, math.MinInt64, maxCount, maxCount), ErrDepths},
		"a count whose sum wraps":         {counts(300, math.MaxInt64, maxCount, maxCount), ErrDepths},
		"numbers longer than need be":     {append(slices.Clone(sound[:4]), bytes.Repeat([]byte{0x80, 0x80, 0x80, 0x80, 0x80, 0}, (len(sound)-4))...), ErrDepths},
	} {
		var d Depths
		if err := d.UnmarshalBinary(c.form); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// TestDepthInUseStays checks that the depth in use may cost up to an eighth of the work more than a smaller one.
func TestDepthInUseStays(t *testing.T) {
	for short, want := range map[int]int{32: 4096, 40: 256} { // 4096 costs 0.25 and 0.30, 256 costs 0.12, both within 0.015
		rng := rand.New(rand.NewPCG(1, 19))
		var d Depths
		for range 8000 {
			size := 9000
			if rng.IntN(100) < short {
				size = 3000
			}
			d.Observe(hashesOf(size, 0, 0, 0, 0, rng.Uint64N(600)))
		}
		if got := d.Choose(4096); got != want {
			t.Errorf("%d of 100 prompts are shorter than the depth in use: %d bytes are chosen, want %d", short, got, want)
		}
		if got := d.Choose(0); got != 256 {
			t.Errorf("%d of 100 prompts are shorter than 4096 bytes: %d bytes are chosen where there are no keys, want 256", short, got)
		}
	}
}

// TestFewPromptsFindNothing checks that the largest counters of few prompts are not taken for prompts with one key.
func TestFewPromptsFindNothing(t *testing.T) {
	const fleets = 50
	sum := 0.0
	for seed := range uint64(fleets) {
		rng := rand.New(rand.NewPCG(seed, 18))
		var d Depths
		for range minPrompts {
			d.Observe([]uint64{rng.Uint64()})
		}
		found, _ := d.found(0)
		sum += float64(found) / whole
	}
	if mean := sum / fleets; mean > 0.1 {
		t.Errorf("%.2f of %d prompts that share nothing find another one, on average", mean, minPrompts)
	}
}

// TestFewPromptsAreUncertain checks that the cost of few prompts has the error of a share that is observed in them.
func TestFewPromptsAreUncertain(t *testing.T) {
	deviation := func(prompts int) int64 {
		var d Depths
		for range prompts {
			d.Observe([]uint64{1})
		}
		_, deviation := d.cost(0)
		return deviation
	}
	// 1/(2√64) and 1/(2√6400)
	if got, want := deviation(64)-deviation(6400), int64(whole/16-whole/160); got < want-whole/1000 || got > want+whole/1000 {
		t.Errorf("64 prompts are uncertain by %d more than 6,400, want %d", got, want)
	}
}

// TestMerge checks that the replicas of a fleet weigh the same in whatever order they are merged, and that no
// sum overflows.
func TestMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 18))
	var long, short, forward, backward Depths
	for range maxPrompts {
		long.Observe(hashesOf(60_000+rng.IntN(200_000), 50_000, 50_000, 1, 0, rng.Uint64N(60)))
		short.Observe(hashesOf(300+rng.IntN(5000), 0, 0, 0, 0, rng.Uint64()))
	}
	for _, d := range []*Depths{&long, &long, &long, &short, &short, &short, &short, &short, &short} {
		forward.Merge(d)
	}
	for _, d := range []*Depths{&short, &short, &short, &short, &short, &short, &long, &long, &long} {
		backward.Merge(d)
	}
	if forward != backward || forward.Choose(0) != 65536 {
		t.Errorf("%d and %d bytes are chosen in two orders of nine replicas, want 65536", forward.Choose(0), backward.Choose(0))
	}
	var fleet Depths
	for range 10_000 {
		fleet.Merge(&long)
	}
	if got := fleet.Choose(0); got != 65536 || fleet.reached[0] > maxMerged || fleet.reached[0] < maxMerged/2 {
		t.Errorf("%d bytes are chosen for 10,000 replicas, with work of %d", got, fleet.reached[0])
	}
	for level := range DepthLevels {
		of, deviation := long.concentration(level)
		if got, _ := fleet.concentration(level); got < of-2*deviation-whole/50 || got > of+2*deviation+whole/50 {
			t.Errorf("level %d: concentration %d for 10,000 replicas, %d for one", level, got, of)
		}
	}
}

// TestDepthsBytes bounds the binary form, and Observe's allocations.
func TestDepthsBytes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 18))
	var d Depths
	for range 3 * maxPrompts {
		d.Observe(hashesOf(70000, 3000, 3000, 0, 0, rng.Uint64N(1000)))
	}
	b, _ := d.AppendBinary(nil)
	if len(b) > 4000 {
		t.Errorf("%d bytes", len(b))
	}
	hashes := hashesOf(70000, 0, 0, 0, 0, 0)
	if allocs := testing.AllocsPerRun(100, func() { d.Observe(hashes); b, _ = d.AppendBinary(b[:0]) }); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	if d.UnmarshalBinary(b[:len(b)-1]) == nil || d.UnmarshalBinary(append(bytes.Clone(b), 0)) == nil {
		t.Error("counts that are cut off, or too many, are accepted")
	}
}

// TestConcentration compares the estimate with the truth, for keys that are all different, and
// for one that many requests share.
func TestConcentration(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 18))
	for _, share := range []float64{0, 0.1, 0.5, 1} {
		var d Depths
		for range maxPrompts {
			key := rng.Uint64()
			if rng.Float64() < share {
				key = 1
			}
			d.Observe([]uint64{key})
		}
		want := share * share * whole
		if got, deviation := d.concentration(0); math.Abs(float64(got)-want) > 2*float64(deviation) || float64(deviation) > (want+whole/maxPrompts)*0.12 {
			t.Errorf("one key of %v of the requests: concentration %v within %d, want %.0f", share, got, deviation, want)
		}
	}
}
