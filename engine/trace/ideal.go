package trace

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// IdealCache is one prefix cache that serves all requests and loses nothing: what it hits is the
// upper bound of what the caches of replicas can. The zero value is empty.
type IdealCache struct {
	// Limit bounds the blocks that it can hold, 11 to 21 bytes each; 0: any number. Beyond it there is no
	// hit rate.
	Limit int

	seen   idSet
	named  bool // a prompt had prefix ids
	full   bool
	prompt policies.Tokens // of all prompts
	hit    policies.Tokens
}

// Add counts a request, and returns how many tokens at the beginning of its prompt the cache holds.
// The last token of a prompt is always computed. Requests come in order of arrival.
func (c *IdealCache) Add(r Request) policies.Tokens {
	blocks := 0
	for blocks < len(r.Prefix) && c.seen.has(r.Prefix[blocks]) {
		blocks++
	}
	for _, id := range r.Prefix[blocks:] {
		if c.Limit > 0 && c.seen.count == c.Limit {
			c.full, c.seen = true, idSet{}
		}
		if c.full {
			break
		}
		c.seen.add(id)
	}
	cached := min(policies.Tokens(blocks)*BlockTokens, r.Input-1)
	c.named = c.named || len(r.Prefix) > 0
	c.prompt += r.Input
	c.hit += cached
	return cached
}

// Named reports whether a prompt had prefix ids: without any, nothing is known of shared prefixes.
func (c *IdealCache) Named() bool { return c.named }

// HitRate returns the tokens that were cached over those of all prompts; false if no prompt had prefix
// ids, or if they were of more blocks than Limit.
func (c *IdealCache) HitRate() (float64, bool) {
	if !c.named || c.full || c.prompt == 0 {
		return 0, false
	}
	return float64(c.hit) / float64(c.prompt), true
}

// NamesPrefixes reports whether a prompt of the requests has prefix ids.
func NamesPrefixes(requests []Request) bool {
	return slices.ContainsFunc(requests, func(r Request) bool { return len(r.Prefix) > 0 })
}

// idSet is a set of ids in a hash table with linear probing: a third of a map's size.
type idSet struct {
	slots []uint64 // 0: free; a power of two, at most three quarters in use
	zero  bool     // the id 0 is in the set
	count int
}

// find returns the slot of an id, or the free one where it belongs.
func (s *idSet) find(id uint64) int {
	mask := uint64(len(s.slots) - 1)
	x := (id ^ id>>31) * 0x9e3779b97f4a7c15
	for i := (x ^ x>>32) & mask; ; i = (i + 1) & mask {
		if s.slots[i] == id || s.slots[i] == 0 {
			return int(i)
		}
	}
}

func (s *idSet) has(id uint64) bool {
	if id == 0 {
		return s.zero
	}
	return len(s.slots) > 0 && s.slots[s.find(id)] == id
}

func (s *idSet) add(id uint64) {
	if s.has(id) {
		return
	}
	s.count++
	if id == 0 {
		s.zero = true
		return
	}
	if 4*s.count > 3*len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(64, 2*len(old)))
		for _, o := range old {
			if o != 0 {
				s.slots[s.find(o)] = o
			}
		}
	}
	s.slots[s.find(id)] = id
}
