package loadtracker

import (
	"math/rand/v2"
	"sync"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

const (
	// blockTokens is the length of the blocks in which what the engine was sent is recorded.
	blockTokens = 64
	// leastBlock is the least length of an engine's blocks: its events may name as many blocks
	// as its KV cache has of these, twice, because blocks of other tiers count, too.
	leastBlock = 16
	// defaultCapacity is the capacity for a KV cache of unknown size.
	defaultCapacity policies.Tokens = 1 << 18
	// maxBlocks bounds an index, at 64 bytes for each block.
	maxBlocks = 1 << 22
)

// PrefixSource is where the knowledge comes from.
type PrefixSource uint8

// The sources.
const (
	NoSource     PrefixSource = iota // nothing is known
	OwnPrompts                       // from what the engine was sent
	EngineEvents                     // from the engine's KV events
)

// String names the source, for reports and metrics.
func (s PrefixSource) String() string {
	return [...]string{NoSource: "none", OwnPrompts: "own", EngineEvents: "events"}[min(s, EngineEvents)]
}

// Prefixes is what a front end knows of the prompts whose KV its engine holds: from the engine's KV events while they
// arrive (Store, Remove, Clear), and else from the prompts and the outputs that the engine has computed (Begin, Extend),
// as far as its KV cache reaches. The decisions are those of policies/prefix.
//
// What the engine was sent is recorded in any case: it says how much of a prompt the engine finds in its cache where the
// engine does not report that (by default some do not), and stands in for events
// that do not arrive. It does not show what makes an engine evict early: it is an estimate. It is safe for
// concurrent use.
type Prefixes struct {
	mu     sync.Mutex
	sent   *prefix.Index
	held   *prefix.Index // of the events
	live   bool          // held is what the engine holds, as far as is known
	epoch  uint64        // grows when live changes
	sketch prefix.Summary

	queries, hits uint64
}

// NewPrefixes returns an empty Prefixes for a KV cache of that size; 0 stands for an unknown one.
func NewPrefixes(kv policies.Tokens) *Prefixes {
	x := &Prefixes{epoch: 1, sent: prefix.NewIndex(1, rand.Uint64()), held: prefix.NewIndex(1, rand.Uint64())}
	x.SetCapacity(kv)
	return x
}

// SetCapacity sets the size of the KV cache, as New does.
func (x *Prefixes) SetCapacity(kv policies.Tokens) {
	if kv <= 0 {
		kv = defaultCapacity
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent.SetCapacity(int(min(max(kv/blockTokens, 1), maxBlocks)))
	x.held.SetCapacity(int(min(max(2*kv/leastBlock, 1), maxBlocks)))
}

// Forget forgets what the engine was sent: it has started anew, with an empty cache. What its
// events say stays until they say otherwise.
func (x *Prefixes) Forget() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent.Clear()
}

// current returns the index that counts now, x.mu held.
func (x *Prefixes) current() *prefix.Index {
	if x.live {
		return x.held
	}
	return x.sent
}

// Match returns how many tokens of a prompt the engine holds.
func (x *Prefixes) Match(root prefix.Hash, ids []uint32) policies.Tokens {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.current().Match(root, ids)
}

// MatchSteps is Match for a prompt of which only the steps are known.
func (x *Prefixes) MatchSteps(steps []prefix.Step) policies.Tokens {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.current().MatchSteps(steps)
}

// Chain is a request at the engine, whose ids are recorded as they come. The zero value records
// nothing.
type Chain struct {
	hash  prefix.Hash // of the blocks before tail
	depth int         // tokens before tail
	tail  []uint32    // the beginning of a block
}

// Begin records the ids with which a request begins at the engine, and returns how many of them
// the engine had before by this record. It makes c the chain of the request.
func (x *Prefixes) Begin(c *Chain, root prefix.Hash, ids []uint32) (known policies.Tokens) {
	whole := len(ids) / blockTokens * blockTokens
	if c.tail == nil {
		c.tail = make([]uint32, 0, blockTokens)
	}
	c.hash, c.depth = root.Extend(ids[:whole]...), whole
	c.tail = append(c.tail[:0], ids[whole:]...)
	x.mu.Lock()
	defer x.mu.Unlock()
	known = x.sent.Add(root, ids, blockTokens)
	x.queries += uint64(len(ids))
	x.hits += uint64(known)
	return known
}

// Expect records a prompt whose KV the engine will get from another one.
func (x *Prefixes) Expect(root prefix.Hash, ids []uint32) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.sent.Add(root, ids, blockTokens)
}

// Extend records ids that the engine has generated after those of the chain.
func (x *Prefixes) Extend(c *Chain, ids ...uint32) {
	if c.tail == nil {
		return
	}
	for _, id := range ids {
		if c.tail = append(c.tail, id); len(c.tail) < blockTokens {
			continue
		}
		next := c.hash.Extend(c.tail...)
		x.mu.Lock()
		x.sent.Store(&prefix.Stored{
			Hashes: []uint64{uint64(next)}, Tokens: c.tail, BlockTokens: blockTokens, HasParent: c.depth > 0, Parent: uint64(c.hash), Root: c.hash,
		})
		x.mu.Unlock()
		c.hash, c.depth, c.tail = next, c.depth+blockTokens, c.tail[:0]
	}
}

// Store, Remove and Clear apply an event of the engine.
func (x *Prefixes) Store(e *prefix.Stored) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.held.Store(e)
}

// Remove is Store for blocks that the engine has removed.
func (x *Prefixes) Remove(e prefix.Removed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.held.Remove(e)
}

// Clear is Store for an engine that has emptied its cache, or has started anew.
func (x *Prefixes) Clear() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.held.Clear()
}

// SetLive says whether the engine's events arrive: whether what they have said counts.
func (x *Prefixes) SetLive(live bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.live != live {
		x.live = live
		x.epoch++
	}
}

// epochShift makes versions of different epochs differ: an index does not change as often.
const epochShift = 48

// Summary returns what the engine holds, as peers get it, and a number above 0 that is another
// one when that is; nil if that number is known.
func (x *Prefixes) Summary(known uint64) (encoded []byte, version uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if version = x.epoch<<epochShift + x.current().Changes(); version == known {
		return nil, version
	}
	x.current().Summarize(&x.sketch)
	encoded, _ = x.sketch.AppendBinary(nil) // which never fails
	return encoded, version
}

// PrefixStatus is what is known now.
type PrefixStatus struct {
	Source PrefixSource
	Blocks int            // of the index that counts
	Bytes  policies.Bytes // of memory
	Counts prefix.Counts  // of the events
	// Queries counts the prompt tokens that the engine was sent, Hits those of them that it
	// had been sent before, or had generated.
	Queries, Hits uint64
}

// PrefixStatus returns what is known now.
func (x *Prefixes) Status() PrefixStatus {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := PrefixStatus{Blocks: x.current().Len(), Bytes: x.sent.Bytes() + x.held.Bytes(), Counts: x.held.Counts(), Queries: x.queries, Hits: x.hits}
	switch {
	case x.live:
		s.Source = EngineEvents
	case s.Blocks > 0:
		s.Source = OwnPrompts
	}
	return s
}
