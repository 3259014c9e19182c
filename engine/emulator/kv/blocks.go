package kv

import "fmt"

// Hash identifies the content of a full block: the ids of its tokens and of all tokens before
// it. 0 is no hash.
type Hash uint64

// Blocks tracks the blocks of a pool: reference counts, the free list, and full blocks by hash.
// Free blocks keep their content and their hash until they are allocated again, least
// recently freed first. Sequences that compute the same content at the same time each keep
// their own copy. It is not safe for concurrent use.
//
// Invariants:
//  1. a block is on the free list exactly if its reference count is 0,
//  2. the blocks with hash[b] = h ≠ 0 are a ring through later and earlier, in the order of
//     their registration, and found[h] is the first of them.
type Blocks struct {
	refs  []int32
	hash  []Hash
	found map[Hash]Block
	// Valid for blocks with a hash.
	later, earlier []Block
	// The free list is doubly linked through next and prev, with the sentinel
	// at index len(refs): taking a cached block out of its middle is O(1).
	next, prev []Block
	free       int
}

// NewBlocks returns a Blocks with n free blocks.
func NewBlocks(n int) *Blocks {
	b := &Blocks{
		refs: make([]int32, n), hash: make([]Hash, n), found: make(map[Hash]Block),
		later: make([]Block, n), earlier: make([]Block, n),
		next: make([]Block, n+1), prev: make([]Block, n+1), free: n,
	}
	for i := range n + 1 {
		b.next[i] = Block((i + 1) % (n + 1))
		b.prev[i] = Block((i + n) % (n + 1))
	}
	return b
}

// Free returns the number of free blocks.
func (b *Blocks) Free() int { return b.free }

// Total returns the number of blocks.
func (b *Blocks) Total() int { return len(b.refs) }

// Take allocates the block that has been free longest, with one reference, and removes its
// hash, which it returns; 0 if it had none. It returns false when no block is free.
func (b *Blocks) Take() (block Block, evicted Hash, ok bool) {
	if b.free == 0 {
		return 0, 0, false
	}
	block = b.next[len(b.refs)]
	b.unlink(block)
	evicted = b.hash[block]
	b.forget(block)
	b.refs[block] = 1
	return block, evicted, true
}

// Find returns the block with the hash that was registered first, without a reference to it.
func (b *Blocks) Find(h Hash) (Block, bool) {
	block, ok := b.found[h]
	return block, ok
}

// Used reports whether a block has references.
func (b *Blocks) Used(block Block) bool { return b.refs[block] > 0 }

// References returns a block's reference count.
func (b *Blocks) References(block Block) int { return int(b.refs[block]) }

// Share adds a reference to a block that Find returned.
func (b *Blocks) Share(block Block) {
	if b.refs[block] == 0 {
		b.unlink(block)
	}
	b.refs[block]++
}

// Register makes a full block findable by its hash, after other blocks with the same content.
// It does nothing if the block has a hash already.
func (b *Blocks) Register(block Block, h Hash) {
	if h == 0 || b.hash[block] != 0 {
		return
	}
	b.hash[block] = h
	first, taken := b.found[h]
	if !taken {
		b.found[h], b.later[block], b.earlier[block] = block, block, block
		return
	}
	last := b.earlier[first]
	b.later[last], b.earlier[block] = block, last
	b.later[block], b.earlier[first] = first, block
}

// Reset removes the hashes of all blocks. It does nothing and returns false while a block has
// references.
func (b *Blocks) Reset() bool {
	if b.free < len(b.refs) {
		return false
	}
	clear(b.hash)
	clear(b.found)
	return true
}

// Release drops one reference to each block of a sequence. Blocks without references become
// free, the sequence's tail first: the tail is evicted before the head, which other sequences
// are more likely to share.
func (b *Blocks) Release(blocks []Block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		block := blocks[i]
		if b.refs[block] <= 0 {
			panic(fmt.Sprintf("internal error: block %d released without a reference", block))
		}
		b.refs[block]--
		if b.refs[block] == 0 {
			last := b.prev[len(b.refs)]
			b.insertFree(block, last)
		}
	}
}

// forget removes a block's hash.
func (b *Blocks) forget(block Block) {
	h := b.hash[block]
	if h == 0 {
		return
	}
	b.hash[block] = 0
	earlier, later := b.earlier[block], b.later[block]
	b.later[earlier], b.earlier[later] = later, earlier
	switch {
	case later == block: // the only one
		delete(b.found, h)
	case b.found[h] == block:
		b.found[h] = later
	}
}

// insertFree inserts a block into the free list after another (or the sentinel).
func (b *Blocks) insertFree(block, behind Block) {
	after := b.next[behind]
	b.next[behind], b.prev[block] = block, behind
	b.next[block], b.prev[after] = after, block
	b.free++
}

func (b *Blocks) unlink(block Block) {
	b.next[b.prev[block]] = b.next[block]
	b.prev[b.next[block]] = b.prev[block]
	b.free--
}
