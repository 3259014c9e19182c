package batch

import (
	"slices"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// match returns the cached blocks that hold a prefix of a sequence. At least one token is left to
// compute: the next one is sampled from it.
func (s *Scheduler) match(q *Sequence) []kv.Block {
	if s.NoPrefixCache || len(q.blocks) > 0 {
		return nil // an adopted sequence has its blocks already
	}
	var hit []kv.Block
	for n := range min(len(q.chain), (q.length-1)/s.Pool.BlockTokens) {
		b, ok := s.blocks.Find(q.BlockHash(n))
		if !ok {
			break
		}
		hit = append(hit, b)
	}
	return hit
}

// Cached returns how many tokens of a sequence's prompt would be found in the prefix cache if it were
// admitted now.
func (s *Scheduler) Cached(q *Sequence) int { return len(s.match(q)) * s.Pool.BlockTokens }

// admit attaches the blocks of a prefix hit and reads their bytes again: the current content of
// the pool determines the text, not what was once written.
func (s *Scheduler) admit(q *Sequence, hit []kv.Block) {
	s.Pool.Load(hit) // an error is recorded in the Pool and ends the engine
	for i, b := range hit {
		s.blocks.Share(b)
		if s.Model == nil {
			continue
		}
		for j := range s.Pool.BlockTokens {
			q.digest += model.Read(s.Pool.Slot(b, j), i*s.Pool.BlockTokens+j)
		}
	}
	if len(q.blocks) == 0 {
		q.blocks = append(q.blocks, hit...)
		q.computed, q.registered = len(hit)*s.Pool.BlockTokens, len(hit)
	}
	q.state = running
	s.order++
	q.order = s.order
	if !q.admitted {
		q.admitted, q.cached, q.local = true, q.computed, q.computed
		s.stats.PrefixQueries += uint64(q.length)
		s.stats.PrefixHits += uint64(q.computed)
	}
}

func (s *Scheduler) blocksFor(tokens int) int {
	return (tokens + s.Pool.BlockTokens - 1) / s.Pool.BlockTokens
}

// grow gives a sequence blocks for its first n tokens. If it returns false the sequence keeps the
// blocks that it got.
func (s *Scheduler) grow(q *Sequence, n int) bool {
	for len(q.blocks) < s.blocksFor(n) {
		b, ok := s.take()
		if !ok {
			return false
		}
		q.blocks = append(q.blocks, b)
	}
	return true
}

// take allocates a block, whose content is lost.
func (s *Scheduler) take() (kv.Block, bool) {
	b, evicted, ok := s.blocks.Take()
	if !ok {
		return 0, false
	}
	s.Pool.Forget(b)
	if s.Cache != nil && evicted != 0 {
		s.Cache.BlockRemoved(evicted)
	}
	return b, true
}

// preempt frees a running sequence's blocks and queues it first: it will recompute what the prefix
// cache has evicted by then.
func (s *Scheduler) preempt(q *Sequence) {
	s.stats.Preemptions++
	if s.Model == nil && !s.NoPrefixCache {
		s.registerOwn(q)
	}
	s.drop(q)
	q.generation++
	s.queueFirst(q)
}

// registerOwn registers the full blocks of a sequence of lengths that no other can share, under
// hashes of its own: as with content, it finds them again if they are not evicted. Before it loses
// them nothing looks for them.
func (s *Scheduler) registerOwn(q *Sequence) {
	for len(q.chain) < q.computed/s.Pool.BlockTokens {
		s.own++
		q.chain = append(q.chain, ownHash|kv.Hash(s.own))
	}
	s.register(q, len(q.chain))
}

// ownHash marks the hashes of registerOwn.
const ownHash kv.Hash = 1 << 63

// SetFull makes the scheduler behave as if other sequences held all its blocks: it preempts all
// running sequences but the oldest ones, as many as keep, and admits none until EndFull.
func (s *Scheduler) SetFull(keep int) {
	s.full = true
	for last := len(s.running) - 1; last >= max(0, keep); last-- {
		victim := s.running[last]
		s.running = s.running[:last]
		s.preempt(victim)
	}
}

// EndFull ends what SetFull began.
func (s *Scheduler) EndFull() { s.full = false }

// queueFirst queues a sequence before all others, but after those that hold blocks: these need no
// further blocks, and may hold those that it waits for.
func (s *Scheduler) queueFirst(q *Sequence) {
	at := 0
	for at < len(s.waiting) && len(s.waiting[at].blocks) > 0 {
		at++
	}
	q.state = waiting
	s.waiting = slices.Insert(s.waiting, at, q)
}

// drop releases all blocks of a sequence. The prefix cache has its full ones then, also those of an
// adopted sequence that it has not registered yet: the next turn of a conversation finds them.
func (s *Scheduler) drop(q *Sequence) {
	if !s.NoPrefixCache {
		s.register(q, len(q.blocks))
	}
	s.blocks.Release(q.blocks)
	q.blocks, q.computed, q.registered, q.digest, q.state = q.blocks[:0], 0, 0, model.Digest(q.Adapter), ended
	q.settled.computed = 0
}
