// Package prefixes estimates how much of a prompt an engine finds in its prefix cache, for
// engines that do not report it: stock vLLM does so only with --enable-prompt-tokens-details.
//
// An Index remembers the prompts that the engine has computed, in blocks and as far as its
// KV cache reaches. It does not see outputs, which engines cache too, nor what makes an
// engine evict early, nor cache salts: it is an estimate.
package prefixes

import (
	"container/list"
	"sync"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// blockTokens is the length of a block. Prefixes are known in whole blocks.
const blockTokens = 64

// defaultCapacity is the capacity for a KV cache of unknown size.
const defaultCapacity policies.Tokens = 1 << 18

// Index is the prefixes that an engine has computed. It is safe for concurrent use.
type Index struct {
	mu       sync.Mutex
	capacity int // blocks
	blocks   map[prefix.Hash]*list.Element
	used     *list.List // of hashes, the latest first
}

// New returns an empty Index for a KV cache of that size; 0 stands for an unknown one.
func New(kv policies.Tokens) *Index {
	return &Index{capacity: blocksOf(kv), blocks: make(map[prefix.Hash]*list.Element), used: list.New()}
}

// blocksOf returns how many blocks a KV cache holds; 0 stands for an unknown size.
func blocksOf(kv policies.Tokens) int {
	if kv <= 0 {
		kv = defaultCapacity
	}
	return int(max(kv/blockTokens, 1))
}

// SetCapacity sets the size of the KV cache, as New does.
func (x *Index) SetCapacity(kv policies.Tokens) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.capacity = blocksOf(kv)
	x.trim()
}

// trim forgets the oldest blocks beyond the capacity, x.mu held.
func (x *Index) trim() {
	for len(x.blocks) > x.capacity {
		delete(x.blocks, x.used.Remove(x.used.Back()).(prefix.Hash))
	}
}

// hashModel returns the hash that those of a model's or adapter's blocks extend.
func hashModel(model string) (h prefix.Hash) {
	for _, c := range []byte(model) {
		h = h.Extend(uint32(c))
	}
	return h
}

// Known returns how many tokens of a prompt Add would return, and records nothing.
func (x *Index) Known(model string, ids []uint32) (known policies.Tokens) {
	h := hashModel(model)
	x.mu.Lock()
	defer x.mu.Unlock()
	for end := blockTokens; end < len(ids); end += blockTokens {
		h = h.Extend(ids[end-blockTokens : end]...)
		if _, ok := x.blocks[h]; !ok {
			break
		}
		known = policies.Tokens(end)
	}
	return known
}

// Add records a prompt for a model or adapter and returns how many of its tokens were known
// before. At least the last one was not: its successor is sampled from it.
func (x *Index) Add(model string, ids []uint32) (known policies.Tokens) {
	h := hashModel(model)
	x.mu.Lock()
	defer x.mu.Unlock()
	prefix := true
	for end := blockTokens; end <= len(ids); end += blockTokens {
		h = h.Extend(ids[end-blockTokens : end]...)
		e, ok := x.blocks[h]
		if prefix = prefix && ok; prefix && end < len(ids) {
			known = policies.Tokens(end)
		}
		if ok {
			x.used.MoveToFront(e)
			continue
		}
		x.blocks[h] = x.used.PushFront(h)
		x.trim()
	}
	return known
}

// Clear forgets all prompts: the engine has started anew, with an empty cache.
func (x *Index) Clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(x.blocks)
	x.used.Init()
}
