package trace

import (
	"slices"

	"github.com/cascadeinfer/cascade/policies"
)

// IdealCache is one prefix cache that serves all requests and loses nothing: what it hits is the
// upper bound of what the caches of replicas can. The zero value is empty.
type IdealCache struct {
	// Limit bounds the blocks that it can hold, up to 38 bytes each; 0: any number. Beyond it there is no
	// hit rate.
	Limit int

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
	for blocks < len(r.Prefix) && c.holds(r.Prefix[blocks]) {
		blocks++
	}
	for _, id := range r.Prefix[blocks:] {
		if c.Limit > 0 && len(c.seen) == c.Limit {
			c.full, c.seen = true, nil
		}
		if c.full {
			break
		}
		if c.seen == nil {
			c.seen = map[uint64]struct{}{}
		}
		c.seen[id] = struct{}{}
	}
	cached := min(policies.Tokens(blocks)*BlockTokens, r.Input-1)
	c.named = c.named || len(r.Prefix) > 0
	c.prompt += r.Input
	c.hit += cached
	return cached
}

func (c *IdealCache) holds(block uint64) bool {
	_, ok := c.seen[block]
	return ok
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
