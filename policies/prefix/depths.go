package prefix

import (
	"encoding/binary"
	"errors"
	"math"
)

// MinDepth and DepthLevels are the depths that Depths observes: MinDepth bytes of a prompt's
// text, and each twice the one before.
const (
	MinDepth    = 256
	DepthLevels = 10
)

// Depths observes how many prompts have equal beginnings, for each depth, and chooses the
// depth of a routing key, or that there is none. A small depth puts all requests with one set
// of instructions on one replica; a large one leaves shorter prompts without a key, and parts
// the turns of a conversation, whose first are shorter, and the questions about one document.
//
// How much requests are concentrated is the share of pairs of requests that have the same key.
// It is estimated from 256 counters for each depth, within about a tenth. Depths can be added
// (Merge), so replicas observe by themselves what the whole fleet decides on. Counts halve
// when they become large, so that old requests are forgotten. The zero value has seen nothing.
type Depths struct {
	prompts uint32
	reached [DepthLevels]uint32 // prompts that are as long as the depth, or longer
	// alone is what the squares of the counts would be if all keys were different: reached, until
	// counts are halved, which divides squares by four.
	alone  [DepthLevels]uint32
	counts [DepthLevels][depthCounters]int32
}

const (
	depthCounters = 256
	// maxPrompts is where all counts are halved.
	maxPrompts = 8192
	// minPrompts is the least number of prompts for a choice. Choose allows for the error of the
	// estimate, but fewer prompts may come from a few clients and not be typical.
	minPrompts = 64

	// Shares are counted in 1/whole. A depth costs the share of the requests without a key, and
	// crowding times the concentration: where half of the requests have one key, that is half as
	// bad as no keys.
	whole, crowding = 1 << 20, 2
	// slack is by how much a smaller depth may cost more than the best one.
	slack = whole / 16
	// fine is a concentration that needs no larger depth: that of one key for a twentieth of the requests.
	fine = whole / 400

	depthsMax  = 1 + 5 + DepthLevels*(10+depthCounters*5)
	depthsForm = 3
)

// MaxDepthsBytes bounds the binary form of Depths. 3 KB are usual.
const MaxDepthsBytes = depthsMax

// Observe counts a prompt. The hashes are those of its text up to MinDepth bytes, twice as
// many, and so on, as far as it reaches. Prompts without a hash do not count.
func (d *Depths) Observe(hashes []uint64) {
	if len(hashes) == 0 {
		return
	}
	if d.prompts >= maxPrompts {
		d.halve()
	}
	d.prompts++
	for level, h := range hashes[:min(len(hashes), DepthLevels)] {
		d.reached[level]++
		d.alone[level]++
		m := (h + uint64(level)) * 0x9e3779b97f4a7c15
		m = (m ^ m>>32) * 0xd6e8feb86659fd93
		d.counts[level][m>>56] += int32(m>>55&1)*2 - 1
	}
}

// halve forgets half of what was observed.
func (d *Depths) halve() {
	d.prompts /= 2
	for level := range d.counts {
		d.reached[level] /= 2
		d.alone[level] /= 4
		for i, c := range d.counts[level] {
			// Every other odd count is rounded up: else the squares would lose more than three quarters.
			if odd := c % 2; i%2 == 0 {
				c += odd
			}
			d.counts[level][i] = c / 2
		}
	}
}

// Merge adds what another has observed.
func (d *Depths) Merge(o *Depths) {
	d.prompts += min(o.prompts, 2*maxPrompts)
	for level := range d.counts {
		d.reached[level] += min(o.reached[level], 2*maxPrompts)
		d.alone[level] += min(o.alone[level], 2*maxPrompts)
		for i := range d.counts[level] {
			d.counts[level][i] += o.counts[level][i]
		}
	}
	for d.prompts > 2*maxPrompts {
		d.halve()
	}
}

// Prompts returns how many prompts count.
func (d *Depths) Prompts() int { return int(d.prompts) }

// squares returns the sum of the squares of how many prompts have each key of a level, as estimated.
func (d *Depths) squares(level int) (sum int64) {
	for _, c := range d.counts[level] {
		sum += int64(c) * int64(c)
	}
	return sum
}

// concentration returns the share of pairs of prompts that have the same key at a level, and
// its standard error, in 1/whole.
func (d *Depths) concentration(level int) (share, deviation int64) {
	sum, n := d.squares(level), int64(d.prompts)
	pairs := max(n*(n-1), 1)
	// A prompt is no pair with itself. The sum of squares of 256 counters is within √(2/256).
	return max(sum-int64(d.alone[level]), 0) * whole / pairs, sum * (whole * 9 / 100) / pairs
}

// cost returns what keys of a level cost, and its standard error, in 1/whole.
func (d *Depths) cost(level int) (cost, deviation int64) {
	share, deviation := d.concentration(level)
	without := int64(d.prompts - min(d.reached[level], d.prompts))
	return crowding*share + without*whole/max(int64(d.prompts), 1), crowding * deviation
}

// pays reports whether keys of a level bring prompts together: on average, a prompt has at least one
// other with its key. Below that, choosing by load is as good for prompts that share a key, and better
// for the rest. Keys that are in use need half of that.
func (d *Depths) pays(level int, inUse bool) bool {
	n := int64(d.prompts)
	others := d.squares(level) - int64(d.alone[level])
	if inUse {
		return 2*others >= n
	}
	return others >= n
}

// mostConcentrated returns how concentrated the keys of a depth may be: up to fine, or twice as much as
// those of the best depth are among the prompts that reach it. A twentieth of the requests with one key
// may be the longest ones, and most of the work.
func (d *Depths) mostConcentrated() int64 {
	least := int64(whole)
	for level, n := range d.reached {
		if n := int64(n); n >= minPrompts/2 {
			sum := d.squares(level)
			least = min(least, (max(sum-int64(d.alone[level]), 0)*whole+sum*(whole*9/100))/(n*(n-1)))
		}
	}
	return max(fine, 2*least)
}

// Choose returns the depth of a key, in bytes, given the one in use. It is one of the depths
// that are observed, or 0, which means no keys: no depth parts the prompts, or none brings enough
// of them together. While few prompts were seen it is the one in use. All keys change with the
// depth, so it is changed only for a difference that is no error of the estimate.
func (d *Depths) Choose(current int) int {
	if d.prompts < minPrompts {
		return current
	}
	now, best, least, deviation, most := -1, 0, int64(math.MaxInt64), int64(0), d.mostConcentrated()
	for level := range d.counts {
		if MinDepth<<level == current {
			now = level
		}
		share, _ := d.concentration(level)
		if cost, e := d.cost(level); cost < least && share <= most {
			best, least, deviation = level, cost, e
		}
	}
	if now < 0 && least+deviation > whole || now >= 0 && least-deviation > whole {
		return 0
	}
	for level := best - 1; level >= 0; level-- {
		share, _ := d.concentration(level)
		if cost, _ := d.cost(level); cost <= least+slack && share <= most {
			best = level
		}
	}
	if now >= 0 && best > now-2 {
		if cost, _ := d.cost(now); cost <= least+2*(slack+2*deviation) {
			best = now
		}
	}
	if !d.pays(best, now >= 0) {
		return 0
	}
	return MinDepth << best
}

// AppendBinary appends the binary form to b: a version, the number of prompts, and for each
// depth how many reach it, alone and the counts, as varints. It returns no error.
func (d *Depths) AppendBinary(b []byte) ([]byte, error) {
	b = binary.AppendUvarint(append(b, depthsForm), uint64(d.prompts))
	for level := range d.counts {
		b = binary.AppendUvarint(b, uint64(d.reached[level]))
		b = binary.AppendUvarint(b, uint64(d.alone[level]))
		for _, c := range d.counts[level] {
			b = binary.AppendVarint(b, int64(c))
		}
	}
	return b, nil
}

// ErrDepths is the error of a binary form that is malformed or of another version.
var ErrDepths = errors.New("prefix depths: malformed, or of an unknown version")

// UnmarshalBinary replaces d by what AppendBinary has encoded. After an error d is what it was.
func (d *Depths) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || len(b) > MaxDepthsBytes || b[0] != depthsForm {
		return ErrDepths
	}
	var out Depths
	prompts, n := binary.Uvarint(b[1:])
	if n <= 0 || prompts > 2*maxPrompts {
		return ErrDepths
	}
	out.prompts, b = uint32(prompts), b[1+n:]
	for level := range out.counts {
		reached, n := binary.Uvarint(b)
		if n <= 0 || reached > prompts {
			return ErrDepths
		}
		out.reached[level], b = uint32(reached), b[n:]
		alone, n := binary.Uvarint(b)
		if n <= 0 || alone > reached {
			return ErrDepths
		}
		out.alone[level], b = uint32(alone), b[n:]
		for i := range out.counts[level] {
			c, n := binary.Varint(b)
			if n <= 0 || c > int64(prompts) || -c > int64(prompts) {
				return ErrDepths
			}
			out.counts[level][i], b = int32(c), b[n:]
		}
	}
	if len(b) > 0 {
		return ErrDepths
	}
	*d = out
	return nil
}
