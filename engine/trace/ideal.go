package trace

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// maxIdealBlocks bounds the memory of an IdealCache, to about 400 MB.
const maxIdealBlocks = 8 << 20

// IdealCache is one prefix cache that serves all requests and loses nothing: what it hits is the
// upper bound of what the caches of replicas can. The zero value is empty.
type IdealCache struct {
	seen   map[uint64]struct{}
	named  bool // a prompt had prefix ids
	full   bool
	prompt policies.Tokens // of all prompts
	hit    policies.Tokens
}

// Add counts a request, and returns how many tokens at the beginning of its prompt the cache holds.
// The last token of a prompt is always computed. Requests come in order of arrival.
func (c *IdealCache) Add(r Request) policies.Tokens {
	blocks := 0
	for blocks < len(r.Prefix) {
		if _, ok := c.seen[r.Prefix[blocks]]; !ok {
			break
		}
		blocks++
	}
	if c.seen == nil {
		c.seen = map[uint64]struct{}{}
	}
	for _, id := range r.Prefix[blocks:] {
		if len(c.seen) == maxIdealBlocks {
			c.full = true
			break
		}
		c.seen[id] = struct{}{}
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
// ids, or if they were of more than 8 Mi blocks, which the cache does not hold.
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
