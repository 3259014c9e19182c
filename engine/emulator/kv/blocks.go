package kv

import "fmt"

// Hash names the content of a full block: the ids of its tokens and of all
// tokens before it. 0 is no hash.
type Hash uint64

// Blocks keeps the books of a pool: which blocks are in use and by how many,
// which are free, and which full blocks can be found by hash. Free blocks keep
// their content and their hash until they are handed out, least recently
// freed first. Not safe for concurrent use.
//
// Invariants:
//  1. a block is on the free list exactly if its reference count is 0,
//  2. found[h] = b exactly if hash[b] = h ≠ 0.
type Blocks struct {
	refs  []int32
	hash  []Hash
	found map[Hash]Block
	// The free list is doubly linked through next and prev, with the sentinel
	// at index len(refs): taking a cached block out of its middle is O(1).
	next, prev []Block
	free       int
}

// NewBlocks returns the books of n free blocks.
func NewBlocks(n int) *Blocks {
	b := &Blocks{
		refs: make([]int32, n), hash: make([]Hash, n), found: make(map[Hash]Block),
		next: make([]Block, n+1), prev: make([]Block, n+1), free: n,
	}
	for i := range n + 1 {
		b.next[i] = Block((i + 1) % (n + 1))
		b.prev[i] = Block((i + n) % (n + 1))
	}
	return b
}

// Free is how many blocks can be handed out.
func (b *Blocks) Free() int { return b.free }

// Total is how many blocks there are.
func (b *Blocks) Total() int { return len(b.refs) }

// Take hands out the block that has been free for longest, with one
// reference; what was cached in it is forgotten. False when none is free.
func (b *Blocks) Take() (Block, bool) {
	if b.free == 0 {
		return 0, false
	}
	block := b.next[len(b.refs)]
	b.unlink(block)
	b.forget(block)
	b.refs[block] = 1
	return block, true
}

// Find returns the block with the hash, without a reference to it.
func (b *Blocks) Find(h Hash) (Block, bool) {
	block, ok := b.found[h]
	return block, ok
}

// Used reports whether a block has references.
func (b *Blocks) Used(block Block) bool { return b.refs[block] > 0 }

// References is how many hold a block.
func (b *Blocks) References(block Block) int { return int(b.refs[block]) }

// Share adds a reference to a block that Find returned.
func (b *Blocks) Share(block Block) {
	if b.refs[block] == 0 {
		b.unlink(block)
	}
	b.refs[block]++
}

// Register makes a full block findable. When another block with the same
// content is registered already, that one stays and this one is not cached.
func (b *Blocks) Register(block Block, h Hash) {
	if _, taken := b.found[h]; taken || h == 0 {
		return
	}
	b.forget(block)
	b.hash[block] = h
	b.found[h] = block
}

// Release drops one reference to each block of a sequence. Blocks that lose
// their last one become free, the sequence's tail first: the tail is evicted
// before the head that other sequences are more likely to share.
func (b *Blocks) Release(blocks []Block) {
	for i := len(blocks) - 1; i >= 0; i-- {
		block := blocks[i]
		if b.refs[block] <= 0 {
			panic(fmt.Sprintf("internal error: block %d released without a reference", block))
		}
		b.refs[block]--
		if b.refs[block] == 0 {
			last := b.prev[len(b.refs)]
			b.link(block, last)
		}
	}
}

// forget drops a block's hash.
func (b *Blocks) forget(block Block) {
	if h := b.hash[block]; h != 0 {
		delete(b.found, h)
		b.hash[block] = 0
	}
}

// link puts a block into the free list behind another (or the sentinel).
func (b *Blocks) link(block, behind Block) {
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
