package baseline

import (
	"cmp"
	"container/list"
	"math/rand/v2"

	"github.com/cascadeinfer/cascade/policies"
)

// PrefixTree keeps one tree of all prompts that it has routed, and prefers the replica that has seen
// most of a prompt, as the cache_aware policies of sglang-router and vllm-router do:
//
//  1. If the replicas' requests differ by more than maxSpread and by the factor maxFactor, it takes the one
//     with the fewest (the bound on load).
//  2. If more than half of the prompt is in the tree, it takes the replica that got its longest known
//     prefix most recently.
//  3. Otherwise it takes the replica that has got the fewest prompt tokens that were new to the tree.
//
// Prompts without known blocks are not in the tree, and count as new tokens. The zero value has the
// routers' defaults.
type PrefixTree struct {
	// MaxBlocks bounds the tree; the blocks used least recently are forgotten. 0 means 1<<20.
	MaxBlocks int

	blocks map[uint64]*list.Element // of block
	recent list.List                // the most recently used one first
	fresh  []policies.Tokens        // by replica: tokens that were new
}

// block is one node of the tree: an id names a block and all before it.
type block struct {
	id      uint64
	holders []int // replicas that got it, the latest last
}

const (
	maxSpread        = 64
	maxFactor        = 1.5
	defaultMaxBlocks = 1 << 20
	// maxHolders bounds the replicas that a block remembers.
	maxHolders = 16
)

// Route implements Router.
func (p *PrefixTree) Route(r Request, replicas []Replica, _ *rand.Rand) int {
	least := fewestRequests(replicas)
	if least < 0 {
		return -1
	}
	if p.blocks == nil {
		p.blocks = map[uint64]*list.Element{}
	}
	for len(p.fresh) < len(replicas) {
		p.fresh = append(p.fresh, 0)
	}
	most := 0
	for _, x := range replicas {
		if !x.Down {
			most = max(most, x.Requests)
		}
	}
	known, holder := p.match(r.Prefix, replicas)
	to := holder
	switch few := replicas[least].Requests; {
	case most-few > maxSpread && float64(most) > maxFactor*float64(few):
		to = least
	case to < 0 || known*BlockTokens*2 <= int(r.Input):
		to = p.leastFilled(replicas)
	}
	p.insert(r, to, known)
	return to
}

// match returns how many leading blocks of a prompt the tree has, and the replica that got the last of
// them most recently and is not Down; −1 if there is none.
func (p *PrefixTree) match(prefix []uint64, replicas []Replica) (known, holder int) {
	holder = -1
	for _, id := range prefix {
		e := p.blocks[id]
		if e == nil {
			return known, holder
		}
		up := -1
		for _, at := range e.Value.(*block).holders {
			if !replicas[at].Down {
				up = at
			}
		}
		if up < 0 {
			return known, holder
		}
		known, holder = known+1, up
	}
	return known, holder
}

// leastFilled returns the replica that has got the fewest new tokens and is not Down.
func (p *PrefixTree) leastFilled(replicas []Replica) int {
	return best(replicas, func(a, b int) bool { return p.fresh[a] < p.fresh[b] })
}

// insert adds a prompt that a replica gets, of which the tree had known blocks.
func (p *PrefixTree) insert(r Request, to, known int) {
	p.fresh[to] += max(0, r.Input-policies.Tokens(known)*BlockTokens)
	for _, id := range r.Prefix {
		e := p.blocks[id]
		if e == nil {
			e = p.recent.PushFront(&block{id: id})
			p.blocks[id] = e
		} else {
			p.recent.MoveToFront(e)
		}
		e.Value.(*block).hold(to)
	}
	for p.recent.Len() > cmp.Or(p.MaxBlocks, defaultMaxBlocks) {
		last := p.recent.Back()
		delete(p.blocks, p.recent.Remove(last).(*block).id)
	}
}

// hold makes a replica the latest holder.
func (b *block) hold(replica int) {
	kept := b.holders[:0]
	for _, at := range b.holders {
		if at != replica {
			kept = append(kept, at)
		}
	}
	if len(kept) == maxHolders {
		kept = append(kept[:0], kept[1:]...)
	}
	b.holders = append(kept, replica)
}
