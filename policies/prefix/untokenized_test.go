package prefix

import (
	"math/rand/v2"
	"testing"
)

// TestUntokenizedPrompts checks that prompts whose tokens front ends cannot get are given keys that are not worth it where
// front ends know the tokens, but none if there is nothing that a key would bring together; and that counts
// keep what they say of it when they are encoded, merged and halved.
func TestUntokenizedPrompts(t *testing.T) {
	for _, c := range []struct {
		name               string
		talk               talk
		known, untokenized bool // whether there are keys
	}{
		{"a sixth finds another of its conversation", func(rng *rand.Rand) []uint64 {
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64N(30000))
		}, false, true},
		{"most find another of their conversation", func(rng *rand.Rand) []uint64 {
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64N(1000))
		}, true, true},
		{"nothing is shared", func(rng *rand.Rand) []uint64 {
			return hashesOf(300+rng.IntN(40000), 0, 0, 0, 0, rng.Uint64())
		}, false, false},
		{"nothing but instructions is shared", func(rng *rand.Rand) []uint64 {
			return hashesOf(5000+rng.IntN(40000), 3000, 3000, 0, 0, rng.Uint64())
		}, false, false},
		{"all prompts are equal", func(*rand.Rand) []uint64 { return hashesOf(20000, 1<<20, 1<<20, 0, 0, 0) }, false, false},
	} {
		for seed := range uint64(6) {
			rng := rand.New(rand.NewPCG(seed, 19))
			untokenized := seed%2 == 0
			var parts [2]Depths
			depth, changes := 0, 0
			for n := range 12_000 {
				d := &parts[n%8/7] // one counts more than maxPrompts, the other does not
				if hashes := c.talk(rng); untokenized {
					d.ObserveUntokenized(hashes)
				} else {
					d.Observe(hashes)
				}
				if n%1000 != 999 {
					continue
				}
				var fleet Depths
				for i := range parts {
					var decoded Depths
					b, _ := parts[i].AppendBinary(nil)
					if err := decoded.UnmarshalBinary(b); err != nil || decoded != parts[i] {
						t.Fatalf("%s: encoded and decoded it differs: %v", c.name, err)
					}
					fleet.Merge(&decoded)
				}
				if untokenized != (fleet.untokenized == fleet.reached[0]) || !untokenized && fleet.untokenized > 0 {
					t.Fatalf("%s: %d of %d is untokenized", c.name, fleet.untokenized, fleet.reached[0])
				}
				if next := fleet.Choose(depth); next != depth {
					depth = next
					changes++
				}
			}
			if want := untokenized && c.untokenized || !untokenized && c.known; (depth > 0) != want || changes > 1 {
				t.Errorf("%s, seed %d, untokenized %v: %d bytes after %d changes, want keys: %v", c.name, seed, untokenized, depth, changes, want)
			}
		}
	}
	var d Depths
	if d.ObserveUntokenized(make([]uint64, DepthLevels+1)); d.untokenized != d.reached[0] {
		t.Errorf("of one untokenized prompt with more hashes than count, %d of %d is untokenized", d.untokenized, d.reached[0])
	}
}

// TestPartlyUntokenized checks that keys may cost the more the more of the work is untokenized: both those that begin and those
// that stay.
func TestPartlyUntokenized(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 19))
	for _, conversations := range []uint64{4000, 6000, 8000, 12000, 60_000} { // with the last ones only keys that are in use may be worth it
		var d Depths
		for range 8000 {
			d.Observe(hashesOf(9000, 3000, 3000, 0, 0, rng.Uint64N(conversations)))
		}
		cost, deviation := d.cost(0)
		for level := 1; level < DepthLevels; level++ {
			if c, d := d.cost(level); c < cost {
				cost, deviation = c, d
			}
		}
		for _, c := range []struct {
			current    int
			costs      int64
			none, some int64 // what keys may cost if no work is untokenized, and if all is
		}{{0, cost + deviation, worth, whole - slack}, {4096, cost - deviation, stillWorth, whole}} {
			enough := (c.costs - c.none) * 1000 / (c.some - c.none) // untokenized work, in a thousandth
			for _, share := range []int64{enough - 10, enough + 10} {
				d.untokenized = uint32(int64(d.reached[0]) * min(max(share, 0), 1000) / 1000)
				if got, want := d.Choose(c.current) > 0, share > enough && enough < 1000 || enough < 0; got != want {
					t.Errorf("%d conversations, %d in use: keys %v with %d thousandths untokenized, want them from %d on", conversations, c.current, got, share, enough)
				}
			}
		}
	}
}
