package prefix

import (
	"encoding/binary"
	"errors"
)

// MinDepth and DepthLevels are the depths that Depths observes: MinDepth bytes of a prompt's
// text, and each twice the one before.
const (
	MinDepth    = 256
	DepthLevels = 9
)

// Depths observes how many prompts have equal beginnings, for each depth, and chooses the
// depth of a routing key: the smallest one at which the requests are spread over many keys, as
// far as a larger one would spread them. A smaller depth puts all requests with one set of
// instructions on one replica; a larger one parts the turns of a conversation, whose first are
// shorter, and the questions about one document.
//
// How much requests are concentrated is the share of pairs of requests that have the same key.
// It is estimated from 64 counters for each depth, within about a fifth. Depths can be added
// (Merge), so replicas observe by themselves what the whole fleet decides on. Counts halve
// when they become large, so that old requests are forgotten. The zero value has seen nothing.
type Depths struct {
	prompts uint32
	counts  [DepthLevels][depthCounters]int32
}

const (
	depthCounters = 64
	// maxPrompts is where all counts are halved.
	maxPrompts = 8192
	// minPrompts is how many prompts a choice needs.
	minPrompts = 512
	// Concentration, in 1/1024, is no reason for a larger depth up to fine. A larger depth must
	// divide it by more than better/1024 to be preferred; a depth in use is left only for reasons
	// that are twice as strong, since all keys change with it.
	fine       = 16
	better     = 1280
	depthsMax  = 1 + 5 + DepthLevels*depthCounters*5
	depthsForm = 1
)

// MaxDepthsBytes bounds the binary form of Depths. 1,200 bytes are usual.
const MaxDepthsBytes = depthsMax

// Observe counts a prompt. The hashes are those of its text up to MinDepth bytes, twice as
// many, and so on, as far as it reaches; of a prompt that is shorter than a depth, the longest
// counts. Prompts without a hash do not count.
func (d *Depths) Observe(hashes []uint64) {
	if len(hashes) == 0 {
		return
	}
	if d.prompts >= maxPrompts {
		d.halve()
	}
	d.prompts++
	for level := range d.counts {
		at := min(level, len(hashes)-1)
		m := (hashes[at] + uint64(at)) * 0x9e3779b97f4a7c15
		m = (m ^ m>>32) * 0xd6e8feb86659fd93
		d.counts[level][m>>58] += int32(m>>57&1)*2 - 1
	}
}

// halve forgets half of what was observed.
func (d *Depths) halve() {
	d.prompts /= 2
	for level := range d.counts {
		for i := range d.counts[level] {
			d.counts[level][i] /= 2
		}
	}
}

// Merge adds what another has observed.
func (d *Depths) Merge(o *Depths) {
	d.prompts += min(o.prompts, maxPrompts)
	for level := range d.counts {
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

// concentration returns the share of pairs of prompts that have the same key at a level, in
// 1/1024.
func (d *Depths) concentration(level int) int64 {
	sum, n := int64(0), int64(d.prompts)
	for _, c := range d.counts[level] {
		sum += int64(c) * int64(c)
	}
	// A prompt is no pair with itself.
	return max(sum-n, 0) * 1024 / max(n*(n-1), 1)
}

// Choose returns the depth of a key, in bytes, given the one in use or 0. It is one of the
// depths that are observed. While few prompts were seen it is the one in use.
func (d *Depths) Choose(current int) int {
	if d.prompts < minPrompts {
		return current
	}
	least := d.concentration(0)
	for level := range d.counts {
		least = min(least, d.concentration(level))
	}
	level := 0
	for d.concentration(level) > max(fine, least*better/1024) {
		level++
	}
	chosen, now := MinDepth<<level, -1
	for i := range DepthLevels {
		if MinDepth<<i == current {
			now = i
		}
	}
	// The depth in use stays while it is neither much too concentrated nor much too large.
	if now >= 0 && d.concentration(now) <= max(2*fine, 2*least) && level > now-2 {
		return current
	}
	return chosen
}

// AppendBinary appends the binary form to b: a version, the number of prompts, and the counts,
// as varints. It returns no error.
func (d *Depths) AppendBinary(b []byte) ([]byte, error) {
	b = binary.AppendUvarint(append(b, depthsForm), uint64(d.prompts))
	for level := range d.counts {
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
