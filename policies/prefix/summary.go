package prefix

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Summary is a sketch of the steps that an Index contains: a Bloom filter of 11 bits for each.
// A step that the Index contains is always found; one that it does not contain is found in 1
// of 100 cases at most, which makes a prefix seem one step longer than it is.
//
// It has at most 5,957 steps and MaxSummaryBytes: 3 M tokens. Of larger caches it contains
// every second step, or every fourth, and so on: prefixes are then known in larger units, as
// rarely wrong. The zero value is the Summary of an empty Index.
type Summary struct {
	level uint8  // the steps in it are multiples of StepTokens << level
	steps uint32 // how many there are
	words []uint64
}

// The binary form is version, level, the number of steps (4 bytes, little-endian) and the
// filter in words of 8 bytes (little-endian), whose number follows from that of the steps.
const (
	summaryVersion = 1
	summaryHeader  = 6
	bitsPerStep    = 11
	probes         = 7
	maxLevel       = 20
	maxSteps       = MaxSummaryBytes * 8 / bitsPerStep
)

// MaxSummaryBytes bounds the filter of a Summary. Its binary form is 6 bytes longer.
const MaxSummaryBytes = 8192

// wordsOf returns how many words the filter of that many steps has.
func wordsOf(steps int) int { return (steps*bitsPerStep + 63) / 64 }

// Changes returns a number that is another one when a Summary would be.
func (x *Index) Changes() uint64 { return x.changes }

// Summarize overwrites s with a Summary of the Index, and reuses its memory. It takes time
// with the number of steps, and changes no more than how it keeps them.
func (x *Index) Summarize(s *Summary) {
	x.compactSteps()
	var levels [maxLevel + 1]int
	for _, n := range x.steps {
		levels[levelOf(x.at(n).depth)]++
	}
	s.level = 0
	steps := len(x.steps)
	for ; steps > maxSteps && s.level < maxLevel; s.level++ {
		steps -= levels[s.level]
	}
	steps = min(steps, maxSteps)
	s.steps = uint32(steps)
	s.words = slices.Grow(s.words[:0], wordsOf(steps))[:wordsOf(steps)]
	clear(s.words)
	for _, n := range x.steps {
		if e := x.at(n); levelOf(e.depth) >= s.level {
			s.add(Hash(e.chain))
		}
	}
}

// levelOf returns how often a depth, which is a multiple of StepTokens, can be halved and is
// still one.
func levelOf(depth uint32) uint8 {
	return uint8(min(bits.TrailingZeros32(depth/uint32(StepTokens)), maxLevel))
}

// bit returns the place of a hash's i-th bit.
func (s *Summary) bit(h Hash, i uint64) (word, mask uint64) {
	a := uint64(h) * 0xd6e8feb86659fd93
	b := (a ^ a>>32) * 0x9e3779b97f4a7c15
	at, _ := bits.Mul64(a+i*(b|1), uint64(len(s.words))*64)
	return at / 64, 1 << (at % 64)
}

// add sets the bits of a hash.
func (s *Summary) add(h Hash) {
	for i := range uint64(probes) {
		word, mask := s.bit(h, i)
		s.words[word] |= mask
	}
}

// has returns whether the bits of a hash are set.
func (s *Summary) has(h Hash) bool {
	if len(s.words) == 0 {
		return false
	}
	for i := range uint64(probes) {
		if word, mask := s.bit(h, i); s.words[word]&mask == 0 {
			return false
		}
	}
	return true
}

// MatchSteps returns how many tokens of a prompt with those steps are held.
func (s *Summary) MatchSteps(steps []Step) (known policies.Tokens) {
	for _, p := range steps {
		if p.Tokens%s.Unit() != 0 {
			continue
		}
		if !s.has(p.Hash) {
			break
		}
		known = p.Tokens
	}
	return known
}

// Unit returns of how many tokens prefixes are multiples in this Summary.
func (s *Summary) Unit() policies.Tokens { return StepTokens << s.level }

// Tokens returns about how many tokens the Index contains, where prefixes that prompts have in
// common count once.
func (s *Summary) Tokens() policies.Tokens { return policies.Tokens(s.steps) * s.Unit() }

// AppendBinary appends the binary form to b. It returns no error.
func (s *Summary) AppendBinary(b []byte) ([]byte, error) {
	b = append(b, summaryVersion, s.level)
	b = binary.LittleEndian.AppendUint32(b, s.steps)
	for _, w := range s.words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b, nil
}

// The errors of UnmarshalBinary.
var (
	ErrSummaryVersion = errors.New("prefix summary: another version than 1, the only one known: upgrade this replica")
	ErrSummary        = errors.New("prefix summary: malformed")
)

// UnmarshalBinary replaces s by what AppendBinary has encoded. After an error s is what it was.
func (s *Summary) UnmarshalBinary(b []byte) error {
	switch {
	case len(b) < summaryHeader:
		return ErrSummary
	case b[0] != summaryVersion:
		return ErrSummaryVersion
	}
	steps := binary.LittleEndian.Uint32(b[2:])
	if b[1] > maxLevel || steps > maxSteps || len(b) != summaryHeader+wordsOf(int(steps))*8 {
		return ErrSummary
	}
	s.level, s.steps = b[1], steps
	s.words = slices.Grow(s.words[:0], wordsOf(int(steps)))
	for b = b[summaryHeader:]; len(b) > 0; b = b[8:] {
		s.words = append(s.words, binary.LittleEndian.Uint64(b))
	}
	return nil
}
