package batch

import (
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/emulator/model"
)

// Load is a sequence whose prompt's KV bytes come from another engine, as with vLLM's KV
// connectors: it waits in the queue as any other, but then gets all its blocks at once, and
// computes nothing until EndLoad. Every Load that a Step returns must be
// followed by one EndLoad.
type Load struct {
	Sequence *Sequence
	// Blocks is the number of blocks to be filled. The first of them holds positions from First
	// on; the positions before were found in the prefix cache.
	Blocks, First int
	prompt        int
}

// Loaded is the content of the blocks of a Load.
type Loaded struct {
	bytes  []byte
	digest model.Digest
}

// Read digests the bytes of a Load's blocks, one block after the other. Its time grows with their
// number; it may run concurrently with the scheduler.
func (l *Load) Read(bytes []byte, slotBytes int) *Loaded {
	read := &Loaded{bytes: bytes}
	for p := l.First; p < l.prompt-1; p++ { // the last position is always computed again
		read.digest += model.Read(bytes[(p-l.First)*slotBytes:][:slotBytes], p)
	}
	return read
}

// startLoad takes the first waiting sequence from the queue and gives it its blocks, of which hit
// are cached.
func (s *Scheduler) startLoad(q *Sequence, hit []kv.Block) {
	s.admit(q, hit)
	if !s.grow(q, q.length) {
		panic("internal error: blocks that were counted are gone")
	}
	q.state = loading
	s.loading++
	s.stats.ExternalQueries += uint64(q.length - q.computed)
	s.stats.ExternalHits += uint64(q.length - q.computed)
	s.loads = append(s.loads, Load{Sequence: q, Blocks: len(q.blocks) - len(hit), First: q.computed, prompt: q.length})
}

// EndLoad ends a Load. The sequence goes on as if it had computed what was loaded, which nothing
// verifies. If that is nil, loading failed, and it computes its whole prompt.
//
// Either way the sequence counts its full blocks as cached tokens, as vLLM does.
func (s *Scheduler) EndLoad(l Load, loaded *Loaded) {
	q := l.Sequence
	s.loading--
	if q.state == ended { // aborted meanwhile
		s.drop(q)
		return
	}
	last := q.length - 1
	q.Load, q.cached = false, last/s.Pool.BlockTokens*s.Pool.BlockTokens
	if loaded != nil {
		s.store(q.blocks[len(q.blocks)-l.Blocks:], loaded.bytes)
		q.external, q.adopted = q.length-q.computed, true
		q.digest += loaded.digest
		q.computed = last
	} else {
		s.drop(q)
		q.local = 0
	}
	s.queueFirst(q)
}

// store writes the content of blocks.
func (s *Scheduler) store(blocks []kv.Block, bytes []byte) {
	for i, b := range blocks {
		for slot := range s.Pool.BlockTokens {
			at := (i*s.Pool.BlockTokens + slot) * s.Pool.SlotBytes
			copy(s.Pool.Slot(b, slot), bytes[at:])
		}
		s.Pool.Changed(b, 0, s.Pool.BlockTokens)
	}
	s.Pool.Flush(blocks) // an error is recorded in the Pool and ends the engine
}

// Pinned returns the blocks of a sequence with Pin that has ended at its MaxOutput. They stay
// allocated until Unpin.
func (q *Sequence) Pinned() []kv.Block { return q.pinned }

// PinnedIDs returns the ids whose KV Pinned has: all but the last one.
func (q *Sequence) PinnedIDs() []model.Token { return q.ids[:q.length-1] }

// Unpin frees pinned blocks. Further calls have no effect.
func (s *Scheduler) Unpin(q *Sequence) {
	s.pinned -= len(q.pinned)
	s.blocks.Release(q.pinned)
	q.pinned = nil
}

// pin keeps the blocks with computed positions of a sequence that ends.
func (s *Scheduler) pin(q *Sequence) {
	q.pinned = append(q.pinned, q.blocks[:s.blocksFor(q.computed)]...)
	for _, b := range q.pinned {
		s.blocks.Share(b)
	}
	s.pinned += len(q.pinned)
}
