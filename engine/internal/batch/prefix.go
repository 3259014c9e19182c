package batch

import (
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/engine/emulator/kv"
)

// Why the blocks of a prefix cannot be pinned, or a reservation not be used as it is.
var (
	ErrNoPrefixCache = errors.New("the engine has no prefix cache")
	ErrPrefix        = errors.New("the reservation is for a prefix")
	ErrInUse         = errors.New("a reservation of this name exists")
)

// prefix is the beginning of a prompt whose blocks a reservation holds.
type prefix struct {
	ids    *Sequence // never added: its ids, and the hashes of its blocks
	cached int       // leading blocks that belong to the prefix cache
}

// PinPrefix makes r, a new reservation, hold the blocks in which the prefix cache has the beginning
// of q's ids, and with reserve also free blocks for the rest of its whole blocks. q is a sequence of
// NewSequence that is never added. It returns how many ids are in the cache.
//
// It preempts no sequence, and leaves a free block for each that runs: with ErrFull, r is unchanged.
func (s *Scheduler) PinPrefix(r *Reservation, q *Sequence, reserve bool) (cached int, err error) {
	switch {
	case s.NoPrefixCache:
		return 0, ErrNoPrefixCache
	case r.status != open || r.prefix != nil || len(r.blocks) > 0:
		return 0, ErrInUse
	}
	var blocks []kv.Block
	taken := 0
	for n := range q.chain {
		b, ok := s.blocks.Find(q.BlockHash(n))
		if !ok {
			break
		}
		if blocks = append(blocks, b); !s.blocks.Used(b) {
			taken++ // it is taken off the free list, too
		}
	}
	hit := len(blocks)
	if reserve {
		taken += len(q.chain) - hit
	}
	if taken > 0 && taken > s.blocks.Free()-len(s.running) {
		return 0, ErrFull
	}
	for _, b := range blocks {
		s.blocks.Share(b)
	}
	for reserve && len(blocks) < len(q.chain) {
		b, _ := s.take()
		blocks = append(blocks, b)
	}
	s.reserved += len(blocks)
	r.blocks, r.prefix = blocks, &prefix{ids: q, cached: hit}
	return hit * s.Pool.BlockTokens, nil
}

// CommitPrefix stores the whole blocks of the first tokens in the prefix cache, of a reservation that
// PinPrefix made with reserve and whose blocks another process has filled, and releases it. Nothing
// verifies their content.
func (s *Scheduler) CommitPrefix(r *Reservation, tokens int) error {
	switch {
	case r.status != open:
		return r.checkOpen()
	case r.prefix == nil:
		return errors.New("the reservation is for a request, not for a prefix")
	case tokens < 0 || tokens > len(r.blocks)*s.Pool.BlockTokens:
		return fmt.Errorf("%d tokens, but the reservation has blocks for %d", tokens, len(r.blocks)*s.Pool.BlockTokens)
	}
	q := r.prefix.ids
	q.blocks, q.computed, q.registered = r.blocks, tokens, r.prefix.cached
	s.register(q, len(q.chain))
	q.blocks = nil
	s.Release(r)
	return nil
}
