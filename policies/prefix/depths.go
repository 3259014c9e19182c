package prefix

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strconv"
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
// Prompts count by the work that they are, a fixed part and one that grows with their length: a
// tenth of the requests with one key may be the longest ones, and most of what the replicas do.
// How much work is concentrated is estimated from 256 counters for each depth, within about a
// tenth. Depths can be added (Merge), so replicas observe by themselves what the whole fleet
// decides on. Counts halve when they become large, so that old requests are forgotten. The zero
// value has seen nothing.
type Depths struct {
	prompts uint32
	// untokenized is the work of prompts whose tokens front ends cannot get from their engines; see ObserveUntokenized.
	untokenized uint32
	reached     [DepthLevels]uint32 // the work of the prompts that are as long as the depth, or longer
	// alone is what the squares of the counts would be if all keys were different: the squares of each
	// prompt's work, until counts are halved, which divides squares by four.
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
	// fixedWork is the text that is as much work as what prompts of any length have in common, which
	// are their answers. It is the unit of work.
	fixedWork = 4096
	maxWork   = 1 + MinDepth<<(DepthLevels-1)/fixedWork
	maxCount  = 2 * maxPrompts * maxWork
	// maxMerged is the work at which merged counts are halved, that of hundreds of replicas at least: the
	// replicas that are merged before weigh less then. Its squares fit into 64 bits, and alone into 32.
	maxMerged = 1 << 26

	// Costs are counted in 1/whole, the work of all requests. A depth costs the work that is the first
	// with its key or has none, and its concentration, which is the share of one key that is as bad for
	// the spread of the load.
	whole = 1 << 20
	// slack is by how much a smaller depth may cost more than the best one. The depth in use may cost
	// twice as much more.
	slack = whole / 16
	// worth is what keys may cost where there are none yet, and stillWorth where there are, if front ends
	// know the tokens of all prompts and find without keys what they share: where less than about half of
	// the work finds another prompt with its key, choosing by load is as good for those, and better for the
	// rest. Prompts that are untokenized find hardly anything without keys, which costs whole: keys may cost all
	// that, and a little less before there are any.
	worth, stillWorth = whole * 3 / 5, whole * 3 / 4

	depthsMax  = 1 + 10 + DepthLevels*(10+depthCounters*5)
	depthsForm = 5
)

// MaxDepthsBytes bounds the binary form of Depths. 4 KB are usual.
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
	hashes = hashes[:min(len(hashes), DepthLevels)]
	work := workOf(len(hashes))
	for level, h := range hashes {
		d.reached[level] += work
		d.alone[level] += work * work
		m := (h + uint64(level)) * 0x9e3779b97f4a7c15
		m = (m ^ m>>32) * 0xd6e8feb86659fd93
		d.counts[level][m>>56] += (int32(m>>55&1)*2 - 1) * int32(work)
	}
}

// ObserveUntokenized is Observe for a prompt whose tokens the front end cannot get from its engine. Unless it
// has served the text before, the front end does not know which replica holds its beginning; only a key
// brings such prompts together.
func (d *Depths) ObserveUntokenized(hashes []uint64) {
	d.Observe(hashes)
	if len(hashes) > 0 {
		d.untokenized += workOf(min(len(hashes), DepthLevels))
	}
}

// workOf returns the work of a prompt that reaches so many depths, at least one: 1 to maxWork.
func workOf(depths int) uint32 { return 1 + MinDepth<<(depths-1)/fixedWork }

// halve forgets half of what was observed.
func (d *Depths) halve() {
	d.prompts /= 2
	d.untokenized /= 2
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

// Merge adds what another, which is no sum itself, has observed, for Choose: the binary form of a sum may be refused.
func (d *Depths) Merge(o *Depths) {
	d.prompts += o.prompts
	d.untokenized += o.untokenized
	for level := range d.counts {
		d.reached[level] += o.reached[level]
		d.alone[level] += o.alone[level]
		for i := range d.counts[level] {
			d.counts[level][i] += o.counts[level][i]
		}
	}
	for slices.Max(d.reached[:]) > maxMerged {
		d.halve()
	}
}

// Prompts returns how many prompts count.
func (d *Depths) Prompts() int { return int(d.prompts) }

// squares returns the sum of the squares of the work of each key of a level, as estimated.
func (d *Depths) squares(level int) (sum int64) {
	for _, c := range d.counts[level] {
		sum += int64(c) * int64(c)
	}
	return sum
}

// concentration returns the share of pairs of pieces of work that have the same key at a level, and
// its standard error, in 1/whole.
func (d *Depths) concentration(level int) (share, deviation int64) {
	sum, work := d.squares(level), int64(d.reached[0])
	pairs := max(work*work-int64(d.alone[0]), 1)
	// A prompt is no pair with itself. The sum of squares of 256 counters is within √(2/256).
	return divide(sum-int64(d.alone[level]), pairs), divide(sum*9/100, pairs)
}

// divide returns part/all in 1/whole, from 0 to whole.
func divide(part, all int64) int64 {
	if part <= 0 || all <= 0 {
		return 0
	}
	return int64(min(1, float64(part)/float64(all)) * whole)
}

// root returns the square root of a share in 1/whole.
func root(share int64) int64 { return int64(math.Sqrt(float64(share) * whole)) }

// cost returns what keys of a level cost, and its standard error, in 1/whole.
//
// What replicas get of n keys of equal work varies with 1/√n, as it does with the share of one key
// that all of a replica's excess has: hence the root of the concentration.
func (d *Depths) cost(level int) (cost, deviation int64) {
	share, deviation := d.concentration(level)
	concentrated := root(share)
	deviation = root(share+deviation) - concentrated
	found, missed := d.found(level)
	// A share that is observed in n prompts is within 1/(2√n); n is less if a few of them are most of the work.
	few := root(divide(int64(d.alone[0]), int64(d.reached[0])*int64(d.reached[0]))) / 2
	return whole - found + concentrated, deviation + missed*9/100 + few
}

// topCounters is how many counters are taken for one key each: a few keys may have most of the squares
// and little of the work, which says nothing of the other prompts.
const topCounters = 8

// found returns the share of the work whose prompts are not the first ones with their key, as estimated,
// and the share of those that are first, the keys of the largest counters left out.
func (d *Depths) found(level int) (found, first int64) {
	var top [topCounters]int64 // the largest ones, the least of them first
	for _, c := range d.counts[level] {
		n := int64(max(c, -c))
		for i := 0; i < len(top) && n > top[i]; i++ {
			if i > 0 {
				top[i-1] = top[i]
			}
			top[i] = n
		}
	}
	reached, alone, squares := int64(d.reached[level]), int64(d.alone[level]), d.squares(level)
	if reached == 0 {
		return 0, 0
	}
	rest, others := reached, int64(0)
	for _, n := range top {
		rest, squares = rest-n, squares-n*n
		others += max(0, n-alone/reached) // without a prompt of usual work
	}
	// Without a few keys that stand out, the largest counters of 256 have a fifth of the squares; with
	// some, less. Of m equal prompts, m−1 find the KV of another; m is squares/alone.
	alone, squares = alone*rest/reached, squares*9/8
	first = divide(alone, max(squares, alone))
	all := int64(d.reached[0])
	share := divide(rest, all)
	return min(whole, divide(others, all)+share*(whole-first)/whole), share * first / whole
}

// Choose returns the depth of a key, in bytes, given the one in use. It is one of the depths
// that are observed, or 0, which means no keys: no depth parts the prompts, or none brings enough
// of them together. The less of the work finds without keys what it shares, the fewer are enough.
// While few prompts were seen it is the one in use. All keys change with the depth, so it is
// changed only for a difference that is no error of the estimate.
func (d *Depths) Choose(current int) int {
	if d.prompts < minPrompts {
		return current
	}
	var costs, deviations [DepthLevels]int64
	now, best := -1, 0
	for level := range costs {
		costs[level], deviations[level] = d.cost(level)
		if MinDepth<<level == current {
			now = level
		}
		if costs[level] < costs[best] {
			best = level
		}
	}
	least, deviation := costs[best], deviations[best]
	untokenized := divide(int64(d.untokenized), int64(d.reached[0]))
	start, stay := worth+(whole-slack-worth)*untokenized/whole, stillWorth+(whole-stillWorth)*untokenized/whole
	if now < 0 && least+deviation > start || now >= 0 && least-deviation > stay {
		return 0
	}
	if now >= 0 && costs[now]-deviations[now] <= least+deviation+2*slack {
		return current
	}
	for level := range best {
		if costs[level] <= least+slack {
			best = level
			break
		}
	}
	return MinDepth << best
}

// AppendBinary appends the binary form to b: a version, the number of prompts, the work of untokenized ones, and
// for each depth the work that reaches it, alone and the counts, as varints. It returns no error.
func (d *Depths) AppendBinary(b []byte) ([]byte, error) {
	b = binary.AppendUvarint(append(b, depthsForm), uint64(d.prompts))
	b = binary.AppendUvarint(b, uint64(d.untokenized))
	for level := range d.counts {
		b = binary.AppendUvarint(b, uint64(d.reached[level]))
		b = binary.AppendUvarint(b, uint64(d.alone[level]))
		for _, c := range d.counts[level] {
			b = binary.AppendVarint(b, int64(c))
		}
	}
	return b, nil
}

var (
	// ErrDepthsVersion is returned by Depths.UnmarshalBinary for a form of another version. That is no
	// defect: the binaries of a fleet differ while it is upgraded.
	ErrDepthsVersion = errors.New("prefix depths: another version than " + strconv.Itoa(depthsForm))
	// ErrDepths is returned by Depths.UnmarshalBinary for bytes that AppendBinary does not write.
	ErrDepths = errors.New("prefix depths: malformed")
)

// UnmarshalBinary replaces d by what AppendBinary has encoded. After an error d is what it was.
func (d *Depths) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) > 0 && b[0] != depthsForm:
		return ErrDepthsVersion
	case len(b) == 0 || len(b) > MaxDepthsBytes:
		return ErrDepths
	}
	var out Depths
	prompts, n := binary.Uvarint(b[1:])
	if n <= 0 || prompts > 2*maxPrompts {
		return ErrDepths
	}
	b = b[1+n:]
	untokenized, n := binary.Uvarint(b)
	if n <= 0 || untokenized > prompts*maxWork {
		return ErrDepths
	}
	out.prompts, out.untokenized, b = uint32(prompts), uint32(untokenized), b[n:]
	for level := range out.counts {
		reached, n := binary.Uvarint(b)
		if n <= 0 || reached > prompts*maxWork {
			return ErrDepths
		}
		out.reached[level], b = uint32(reached), b[n:]
		alone, n := binary.Uvarint(b)
		if n <= 0 || alone > reached*maxWork {
			return ErrDepths
		}
		out.alone[level], b = uint32(alone), b[n:]
		counted := int64(-depthCounters) // halving rounds up
		for i := range out.counts[level] {
			c, n := binary.Varint(b)
			if n <= 0 || c > maxCount || c < -maxCount {
				return ErrDepths
			}
			if counted += max(c, -c); counted > int64(reached) {
				return ErrDepths // a prompt is in one counter
			}
			out.counts[level][i], b = int32(c), b[n:]
		}
	}
	if len(b) > 0 || out.untokenized > out.reached[0] {
		return ErrDepths
	}
	*d = out
	return nil
}
