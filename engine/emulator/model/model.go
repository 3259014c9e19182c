// Package model is the emulated language model: a vocabulary, the KV bytes of a token in its
// context, and the next token as a function of the KV bytes of everything before it.
//
// It models no language, but the property by which migration is judged: the continuation of a
// text is a function of the model's name and of every KV byte attended to. Equal ids give equal
// bytes and equal continuations on any replica, whatever was cached, chunked or preempted; one
// wrong, stale or missing byte gives another text.
package model

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Token is an id of the vocabulary.
type Token uint32

// Digest summarises the KV bytes of positions [0, n) of a sequence. It is the sum of one term per
// position, so that ranges of positions can be read in any order and added. The digest of no
// positions is 0.
type Digest uint64

// SlotQuantum divides the size of a slot, the KV bytes of one token.
const SlotQuantum = 8

// Model is one emulated model. It is immutable and safe for concurrent use.
type Model struct {
	*Vocabulary
	seed uint64
}

// New returns the model of a name. The name alone seeds it: replicas that serve the same model
// continue a text identically.
func New(name string, v *Vocabulary) *Model {
	return &Model{Vocabulary: v, seed: xxhash.Sum64String(name)}
}

// Fill writes the KV bytes of token t at a position into slot and returns the digest including
// it. before is the digest of the positions before: as in attention, a token's KV depends on
// all bytes it attends to, so a wrong byte spreads to everything computed from it.
func (m *Model) Fill(slot []byte, before Digest, t Token, position int) Digest {
	x := mix(uint64(before) ^ m.seed ^ uint64(t)*oddA)
	for i := 0; i+SlotQuantum <= len(slot); i += SlotQuantum {
		x += oddB
		binary.LittleEndian.PutUint64(slot[i:], x^x>>29)
	}
	return before + Read(slot, position)
}

// Read returns a position's term of the digest, from its KV bytes.
func Read(slot []byte, position int) Digest {
	return Digest(mix(xxhash.Sum64(slot) + uint64(position)*oddA))
}

// meanOutput is the mean length of outputs that may end by themselves. It is a property of the
// model, not of a replica, and so not configurable.
const meanOutput = 256

// Next samples the token that follows n tokens whose KV bytes have digest d; last is the n-th.
// Unless open is set, it is EndOfText with probability 1/256, depending on d alone.
func (m *Model) Next(d Digest, last Token, open Ending) Token {
	r := mix(uint64(d) ^ m.seed)
	if open == MayEnd && r%meanOutput == 0 {
		return EndOfText
	}
	return m.sample(mix(r+oddB), last)
}

// Ending is whether a text may end at a position.
type Ending int

// The two values.
const (
	MayEnd Ending = iota // EndOfText may be sampled
	GoesOn               // EndOfText is masked, as by ignore_eos and min_tokens
)

// Odd 64-bit constants of Weyl sequences (golden ratio, √2 fraction).
const (
	oddA = 0x9e3779b97f4a7c15
	oddB = 0x6a09e667f3bcc909
)

// mix is a bijective finaliser: every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	x ^= x >> 32
	x *= 0xd6e8feb86659fd93
	return x ^ x>>32
}
