package sim

import (
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/engine/internal/batch"
	"github.com/cascadeinfer/cascade/engine/trace"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Prompts are compared by the blocks of their trace, which are as long as the steps of production.
var _ = [1]struct{}{}[trace.BlockTokens-prefix.StepTokens]

const (
	// maxSummaryAge is the age up to which a peer's summary counts.
	maxSummaryAge = time.Duration(place.MaxAge)*time.Microsecond + time.Second
	blockParts    = trace.BlockTokens / defaultBlockTokens
)

// stepsOf returns the steps of a request's prompt. They are valid until the next call.
func (c *cascade) stepsOf(q *request) []prefix.Step {
	if !c.affinity {
		return nil
	}
	c.steps = c.steps[:0]
	for i, id := range q.Prefix[:min(len(q.Prefix), int(q.Input/trace.BlockTokens))] {
		c.steps = append(c.steps, prefix.Step{Tokens: policies.Tokens(i+1) * trace.BlockTokens, Hash: stepHash(id)})
	}
	return c.steps
}

// texts are the blocks of text that a front end has served, the latest ones.
type texts struct{ recent, older map[uint64]bool }

func (x *texts) knows(id uint64) bool { return x.recent[id] || x.older[id] }

// learn adds the blocks of a prompt. At least the last most are known, and at most twice as many.
func (x *texts) learn(ids []uint64, most int) {
	if x.recent == nil || len(x.recent) >= most {
		x.recent, x.older = map[uint64]bool{}, x.recent
	}
	for _, id := range ids {
		x.recent[id] = true
	}
}

// knownBlocks returns how many of a prompt's blocks a front end knows the tokens of: all, or as far as it
// has served the text.
func (c *cascade) knownBlocks(f *front, q *request, steps []prefix.Step) int {
	if !c.ownTexts {
		return len(steps)
	}
	n := 0
	for n < len(steps) && f.texts.knows(q.Prefix[n]) {
		n++
	}
	return n
}

// stepHash returns the hash of a prompt up to the end of a block.
func stepHash(id uint64) prefix.Hash { return prefix.Hash(hashBlock(id, blockParts-1)) }

// placer returns what chooses where requests start.
func (c *cascade) placer() policies.Placer {
	switch {
	case c.stay:
		return nil
	case c.priced:
		return place.Cheapest{}
	}
	return place.Policy{}
}

// holdings is which prefixes an engine's cache has at the ends of blocks, and had a while ago: what its
// peers know of it is as old as its last summary. Production's summaries are sketches, which may also
// name prefixes that are not there.
type holdings struct {
	sim     *Sim
	blocks  map[kv.Hash]holding
	removed []removal // in order of time
}

// holding is one block's last part in a cache.
type holding struct {
	copies int
	since  time.Duration
	until  time.Duration // if there are no copies
}

type removal struct {
	block kv.Hash
	at    time.Duration
}

var _ batch.CacheObserver = (*holdings)(nil)

// observe records from now on what a replica has cached.
func (c *cascade) observe(r *replica) error {
	r.holdings = &holdings{sim: c.sim, blocks: map[kv.Hash]holding{}}
	r.config.Cache = r.holdings
	return r.start()
}

func (h *holdings) clear() {
	clear(h.blocks)
	h.removed = h.removed[:0]
}

// BlocksStored implements batch.CacheObserver.
func (h *holdings) BlocksStored(q *batch.Sequence, first, end int) {
	for n := first - first%blockParts + blockParts - 1; n < end; n += blockParts {
		x := h.blocks[q.BlockHash(n)]
		if x.copies == 0 {
			x.since = h.sim.now
		}
		x.copies++
		h.blocks[q.BlockHash(n)] = x
	}
}

// BlockRemoved implements batch.CacheObserver.
func (h *holdings) BlockRemoved(b kv.Hash) {
	x, ok := h.blocks[b]
	if !ok {
		return
	}
	if x.copies--; x.copies == 0 {
		x.until = h.sim.now
		h.removed = append(h.removed, removal{b, h.sim.now})
	}
	h.blocks[b] = x
}

// CacheCleared implements batch.CacheObserver.
func (h *holdings) CacheCleared() { h.clear() }

// forgetBefore forgets what was removed before a time.
func (h *holdings) forgetBefore(at time.Duration) {
	n := 0
	for n < len(h.removed) && h.removed[n].at < at {
		if x := h.blocks[h.removed[n].block]; x.copies == 0 && x.until == h.removed[n].at {
			delete(h.blocks, h.removed[n].block)
		}
		n++
	}
	h.removed = append(h.removed[:0], h.removed[n:]...)
}

// snapshot is what a replica's summary said at a time.
type snapshot struct {
	*holdings
	at time.Duration
}

var _ place.Prefixes = snapshot{}

// MatchSteps implements place.Prefixes.
func (s snapshot) MatchSteps(steps []prefix.Step) (held policies.Tokens) {
	for _, step := range steps {
		x, ok := s.blocks[kv.Hash(step.Hash)]
		if !ok || x.since > s.at || x.copies == 0 && x.until <= s.at {
			break
		}
		held = step.Tokens
	}
	return held
}
