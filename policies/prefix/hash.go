package prefix

import "github.com/cascadeinfer/cascade/policies"

// StepTokens is the distance between the prefixes that replicas speak of to each other: a
// Step, and what a Summary contains, is a multiple of it long.
const StepTokens policies.Tokens = 512

// Hash is the chain hash of a sequence of token ids. It depends on the ids and on the root
// alone, and not on how they are divided into blocks, so engines whose blocks differ in
// length are comparable wherever a block of each ends. The zero value is the hash of no ids
// under no root.
//
// It is not cryptographic. Two sequences with one hash exist and can be constructed, so an
// equal hash is a reason to ask a replica for a prefix and no proof that it holds those ids:
// whoever uses the KV must compare the ids. Between the two sides of a migration it detects
// mistakes.
type Hash uint64

// Extend returns the hash of the sequence that ids continue.
func (h Hash) Extend(ids ...uint32) Hash {
	x := uint64(h)
	for _, id := range ids {
		x = (x ^ (uint64(id) + 1)) * 0x9e3779b97f4a7c15
		x ^= x >> 29
	}
	return Hash(x)
}

// Root returns the hash that the ids of a prompt extend. Engines reuse KV only between
// prompts for the same model and LoRA adapter ("" is none) with the same cache salt ("" is
// none), so prompts that differ in one of them have nothing in common here, either.
func Root(model, lora, salt string) Hash {
	var h Hash
	for _, s := range [...]string{model, lora, salt} {
		h = h.Extend(uint32(len(s)))
		for i := range len(s) {
			h = h.Extend(uint32(s[i]))
		}
	}
	return h
}

// Step is the chain hash of a prompt's first Tokens tokens, a multiple of StepTokens.
type Step struct {
	Tokens policies.Tokens
	Hash   Hash
}

// AppendSteps appends the steps of a prompt to dst, the shortest first.
func AppendSteps(dst []Step, root Hash, ids []uint32) []Step {
	for n := policies.Tokens(0); len(ids) >= int(StepTokens); ids = ids[StepTokens:] {
		n, root = n+StepTokens, root.Extend(ids[:StepTokens]...)
		dst = append(dst, Step{Tokens: n, Hash: root})
	}
	return dst
}
