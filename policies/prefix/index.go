package prefix

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// Tier is where an engine keeps a block.
type Tier uint8

// The tiers. OtherTier stands for all that are not known here.
const (
	GPU Tier = iota
	CPU
	Storage
	OtherTier
)

// MaxGroup is the largest number of a KV cache group.
const MaxGroup = 63

// Stored says that an engine has stored blocks that continue each other.
type Stored struct {
	Hashes      []uint64 // of the blocks, as the engine calls them
	Tokens      []uint32 // BlockTokens for each block; none if the engine copied blocks between tiers
	BlockTokens int
	HasParent   bool     // whether Parent precedes the first block; else Root does
	Parent      uint64   // a block, as the engine calls it
	Root        Hash     // of what is stored at the beginning of a prompt
	Extra       []uint64 // for each block what it depends on besides its tokens, 0 if nothing; nil if none does
	Group       uint8    // of KV caches, at most MaxGroup
	Tier        Tier
}

// Removed says that an engine has removed blocks.
type Removed struct {
	Hashes []uint64
	Group  uint8
	Tier   Tier
}

// Counts counts blocks since an Index was made.
type Counts struct {
	Stored  uint64 // all that were added, and those that were stored again
	Removed uint64
	Orphans uint64 // not added: the block before them is unknown, so their prompt is, too
	Unknown uint64 // removed by the engine, and unknown here
	Refused uint64 // not added: the event contradicts itself or exceeds a limit
	Evicted uint64 // forgotten for want of room, the least recently stored first
}

// Index is the set of prefixes that one engine holds. Its size is bounded: beyond the
// capacity it forgets the least recently stored blocks. What exceeds the capacity of an engine
// is what the engine has removed unnoticed, and that is likely to be old.
//
// The zero value is not usable; call NewIndex.
type Index struct {
	capacity  int
	pages     []*page
	vacant    uint32 // the first of the vacant entries, which are linked by their newer; 0 if none
	made      uint32 // entries, 0 included, which is the list's end and never a block
	held      int
	byEngine  table    // entries by the engine's hash
	byChain   table    // entries by the chain hash
	sizes     []int    // lengths of blocks
	steps     []uint32 // entries at multiples of StepTokens, and some that are no more
	compactAt int      // the length of steps at which those that are no more are taken out
	scratch   []entry  // the blocks of one call, reused
	peeked    uint64   // keeps the compiler from leaving out what reads ahead
	changes   uint64
	counts    Counts
}

// entry is a block that is held in one place. It is 32 bytes long.
type entry struct {
	engine, chain uint64 // of the block, and of the prompt up to depth
	newer, older  uint32 // neighbours in the order of use
	depth         uint32 // tokens from the beginning of the prompt; 0 in a vacant entry
	refs          uint16 // how often the engine has stored it
	place         place
	listed        bool // in steps
}

// place is a group and a tier: where an engine keeps one copy of a block.
type place uint8

const (
	pageEntries = 1024
	maxCapacity = 1 << 28
	maxSizes    = 4       // lengths of blocks in one engine
	maxBlock    = 1 << 16 // tokens of a block
	maxDepth    = 1 << 30 // tokens of a prompt
	maxRefs     = 1<<16 - 1
)

type page [pageEntries]entry

// NewIndex returns an empty Index for that many blocks, at least one. The seed should be a
// random number, the same for the same decisions: it keeps clients from making lookups slow by
// choosing prompts whose hashes collide.
func NewIndex(blocks int, seed uint64) *Index {
	x := &Index{}
	x.byEngine.seed, x.byChain.seed = seed, seed
	x.capacity = min(max(blocks, 1), maxCapacity)
	x.Clear()
	return x
}

// SetCapacity changes the number of blocks that fit, at least one.
func (x *Index) SetCapacity(blocks int) {
	x.capacity = min(max(blocks, 1), maxCapacity)
	for x.held > x.capacity {
		x.evict()
	}
}

// Clear forgets everything but the counts: the engine has emptied its cache, or has started
// anew.
func (x *Index) Clear() {
	x.pages, x.vacant, x.made, x.held = nil, 0, 1, 0
	x.byEngine = table{seed: x.byEngine.seed}
	x.byChain = table{seed: x.byChain.seed}
	x.pages = append(x.pages, new(page))
	x.sizes, x.steps, x.compactAt = nil, nil, 0
	x.changes++
}

// Len returns how many blocks are held.
func (x *Index) Len() int { return x.held }

// Counts returns what has happened since the Index was made.
func (x *Index) Counts() Counts { return x.counts }

// Bytes returns how much memory the Index takes.
func (x *Index) Bytes() policies.Bytes {
	return policies.Bytes(len(x.pages)*pageEntries*32 + x.byEngine.bytes() + x.byChain.bytes() + cap(x.steps)*4)
}

// at returns an entry.
func (x *Index) at(n uint32) *entry { return &x.pages[n/pageEntries][n%pageEntries] }

// Store adds blocks. Those that are held already are held once more: an engine may compute one
// block for two requests at the same time, and removes each copy by itself. What it keeps of
// the event is a copy.
//
// A block whose predecessor is unknown is not added: an event was lost, and no guess about
// what it was part of is better than none.
func (x *Index) Store(e *Stored) {
	blocks := len(e.Hashes)
	switch {
	case blocks == 0:
		return
	case e.Group > MaxGroup, e.Tier > OtherTier, e.Extra != nil && len(e.Extra) != blocks,
		len(e.Tokens) > 0 && (e.BlockTokens <= 0 || e.BlockTokens > maxBlock || len(e.Tokens)/e.BlockTokens != blocks || len(e.Tokens)%e.BlockTokens != 0):
		x.counts.Refused += uint64(blocks)
		return
	}
	at := placeOf(e.Group, e.Tier)
	if len(e.Tokens) == 0 {
		x.storeCopies(e.Hashes, at)
		return
	}
	chain, depth := e.Root, 0
	if e.HasParent {
		parent := x.findBlock(e.Parent)
		if parent == 0 {
			x.counts.Orphans += uint64(blocks)
			return
		}
		chain, depth = Hash(x.at(parent).chain), int(x.at(parent).depth)
	}
	if len(e.Tokens) > maxDepth-depth || !x.addSize(e.BlockTokens) {
		x.counts.Refused += uint64(blocks)
		return
	}
	x.counts.Stored += uint64(blocks)
	x.scratch = x.scratch[:0]
	for i, engine := range e.Hashes {
		if e.Extra != nil && e.Extra[i] != 0 {
			chain = chain.Extend(uint32(e.Extra[i]), uint32(e.Extra[i]>>32))
		}
		chain = chain.Extend(e.Tokens[i*e.BlockTokens : (i+1)*e.BlockTokens]...)
		depth += e.BlockTokens
		x.scratch = append(x.scratch, entry{engine: engine, chain: uint64(chain), depth: uint32(depth), place: at})
	}
	x.holdAll(true)
}

// storeCopies adds blocks that are held in another place: engines that move blocks between
// tiers do not repeat their tokens.
func (x *Index) storeCopies(hashes []uint64, at place) {
	for _, engine := range hashes {
		n := x.findBlock(engine)
		if n == 0 {
			x.counts.Orphans++
			continue
		}
		x.counts.Stored++
		e := x.at(n)
		x.hold(entry{engine: engine, chain: e.chain, depth: e.depth, place: at}, 0, true)
	}
}

func placeOf(group uint8, tier Tier) place { return place(group)<<2 | place(tier) }

// addSize notes a length of blocks. It returns false if there are too many.
func (x *Index) addSize(size int) bool {
	if slices.Contains(x.sizes, size) {
		return true
	}
	if len(x.sizes) == maxSizes {
		return false
	}
	x.sizes = append(x.sizes, size)
	return true
}

// findBlock returns the entry of a block in any place, or 0.
func (x *Index) findBlock(engine uint64) uint32 {
	m := x.byEngine.find(engine)
	for n, ok := m.next(); ok; n, ok = m.next() {
		if x.at(n).engine == engine {
			return n
		}
	}
	return 0
}

// findAt returns the entry of a block in one place, or 0.
func (x *Index) findAt(engine uint64, at place) uint32 {
	m := x.byEngine.find(engine)
	for n, ok := m.next(); ok; n, ok = m.next() {
		if e := x.at(n); e.engine == engine && e.place == at {
			return n
		}
	}
	return 0
}

// holdAll adds the entries in scratch, which are consecutive blocks of one prompt. Their slots
// are read beforehand, all at once, since in a large Index most are in no cache of the
// processor: waiting for one after the other takes several times as long.
func (x *Index) holdAll(counted bool) {
	sum := uint64(0)
	for i := range x.scratch {
		e := &x.scratch[i]
		sum += x.byEngine.peek(e.engine) + x.byChain.peek(e.chain)
	}
	x.peeked = sum
	last := uint32(0)
	for i := range x.scratch {
		if last = x.hold(x.scratch[i], last, counted); last == 0 {
			return
		}
	}
}

// hold adds an entry, or a reference to it if it is there and counted is true, and makes it
// the most recently used but for the entry after, if that is not 0. It returns its number, or
// 0 if there is no room but that of the entry after.
func (x *Index) hold(e entry, after uint32, counted bool) uint32 {
	if x.held >= x.capacity && x.findAt(e.engine, e.place) == 0 {
		if x.at(0).newer == after && after != 0 {
			x.counts.Evicted++
			return 0
		}
		x.evict()
	}
	inEngine, inChain := x.byEngine.find(e.engine), x.byChain.find(e.chain)
	for n, ok := inEngine.next(); ok; n, ok = inEngine.next() {
		old := x.at(n)
		if old.engine != e.engine || old.place != e.place {
			continue
		}
		if old.chain != e.chain {
			return x.hold(e, x.replace(n, after), counted)
		}
		if counted && old.refs < maxRefs {
			old.refs++
		}
		x.unlink(old)
		x.link(n, after)
		return n
	}
	for n, ok := inChain.next(); ok; n, ok = inChain.next() {
		if old := x.at(n); old.chain == e.chain && old.place == e.place {
			// One prompt has one name in one place. The older one is stale (an adapter was
			// replaced by another of its name), or two prompts were constructed to have one hash.
			return x.hold(e, x.replace(n, after), counted)
		}
	}
	n := x.vacant
	if n != 0 {
		x.vacant = x.at(n).newer
	} else {
		if n = x.made; int(n) == len(x.pages)*pageEntries {
			x.pages = append(x.pages, new(page))
		}
		x.made++
	}
	slot := x.at(n)
	e.refs, e.listed = 1, slot.listed
	*slot = e
	if isStep(e.depth) {
		x.changes++
		if !slot.listed {
			slot.listed = true
			if len(x.steps) >= x.compactAt {
				x.compactSteps()
			}
			x.steps = append(x.steps, n)
		}
	}
	x.held++
	inEngine.add(n)
	inChain.add(n)
	x.link(n, after)
	return n
}

// compactSteps takes entries that are no steps any more out of the list of steps.
func (x *Index) compactSteps() {
	live := x.steps[:0]
	for _, n := range x.steps {
		if e := x.at(n); e.depth > 0 && isStep(e.depth) {
			live = append(live, n)
		} else {
			e.listed = false
		}
	}
	x.steps = live
	x.compactAt = 2*len(live) + 64
}

// isStep returns whether a prefix of that many tokens is a step.
func isStep(depth uint32) bool { return depth%uint32(StepTokens) == 0 }

// replace drops an entry that another one contradicts. It returns after, or 0 if it was that.
func (x *Index) replace(n, after uint32) uint32 {
	x.drop(n)
	if n == after {
		return 0
	}
	return after
}

// Remove takes back one Store of each block.
func (x *Index) Remove(e Removed) {
	at := placeOf(min(e.Group, MaxGroup), min(e.Tier, OtherTier))
	sum := uint64(0)
	for _, engine := range e.Hashes {
		sum += x.byEngine.peek(engine)
	}
	for _, engine := range e.Hashes {
		if n := x.findAt(engine, at); n != 0 {
			sum += x.byChain.peek(x.at(n).chain)
		}
	}
	x.peeked = sum
	for _, engine := range e.Hashes {
		n := x.findAt(engine, at)
		if n == 0 {
			x.counts.Unknown++
			continue
		}
		x.counts.Removed++
		if b := x.at(n); b.refs > 1 {
			b.refs--
		} else {
			x.drop(n)
		}
	}
}

// evict removes the least recently used entry.
func (x *Index) evict() {
	x.counts.Evicted++
	x.drop(x.at(0).newer)
}

// drop removes an entry.
func (x *Index) drop(n uint32) {
	e := x.at(n)
	x.byEngine.remove(e.engine, n)
	x.byChain.remove(e.chain, n)
	x.unlink(e)
	if isStep(e.depth) {
		x.changes++
	}
	e.depth, e.refs, e.newer = 0, 0, x.vacant
	x.vacant = n
	x.held--
}

// link makes an entry the next older one of another, or the newest if that is 0.
func (x *Index) link(n, after uint32) {
	e, a := x.at(n), x.at(after)
	e.newer, e.older = after, a.older
	x.at(a.older).newer = n
	a.older = n
}

// unlink takes an entry out of the order of use.
func (x *Index) unlink(e *entry) {
	x.at(e.newer).older = e.older
	x.at(e.older).newer = e.newer
}

// holds returns whether any place holds a prefix.
func (x *Index) holds(h Hash) bool {
	m := x.byChain.find(uint64(h))
	for n, ok := m.next(); ok; n, ok = m.next() {
		if x.at(n).chain == uint64(h) {
			return true
		}
	}
	return false
}

// Match returns how many tokens of a prompt are held, in whole blocks of one length from its
// beginning. It is less than the prompt's length, since engines always compute the last token.
func (x *Index) Match(root Hash, ids []uint32) policies.Tokens {
	known := 0
	for _, size := range x.sizes {
		h := root
		for end := size; end < len(ids); end += size {
			if h = h.Extend(ids[end-size : end]...); !x.holds(h) {
				break
			}
			known = max(known, end)
		}
	}
	return policies.Tokens(known)
}

// MatchSteps returns how many tokens of a prompt are held, of which only the steps are known.
func (x *Index) MatchSteps(steps []Step) (known policies.Tokens) {
	for _, s := range steps {
		if !x.holds(s.Hash) {
			break
		}
		known = s.Tokens
	}
	return known
}

// Add records a prompt that an engine without events was sent, in blocks of that many tokens,
// and returns what Match would have returned before. When there is no room, prefixes whose
// prompts were added least recently are forgotten, the ends before the beginnings.
func (x *Index) Add(root Hash, ids []uint32, blockTokens int) policies.Tokens {
	known := x.Match(root, ids)
	if blockTokens <= 0 || blockTokens > maxBlock || len(ids) > maxDepth || !x.addSize(blockTokens) {
		x.counts.Refused += uint64(len(ids) / max(blockTokens, 1))
		return known
	}
	x.scratch = x.scratch[:0]
	for end := blockTokens; end <= len(ids); end += blockTokens {
		root = root.Extend(ids[end-blockTokens : end]...)
		x.scratch = append(x.scratch, entry{engine: uint64(root), chain: uint64(root), depth: uint32(end)})
	}
	x.counts.Stored += uint64(len(x.scratch))
	x.holdAll(false)
	return known
}
