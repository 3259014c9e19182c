package batch

import "github.com/cascadeinfer/cascade/engine/emulator/kv"

// CacheObserver is notified of what the prefix cache holds, on the goroutine that drives the
// scheduler and in the order in which it happens. A block is removed when another content takes its
// place, and not when its sequence ends. Equal content that two sequences compute at the same time is
// stored twice, under one hash, and removed twice.
type CacheObserver interface {
	// BlocksStored is called when full blocks of a sequence have become findable: those from
	// first to before end, with the sequence's BlockHash and IDs. Block first-1 precedes them.
	BlocksStored(q *Sequence, first, end int)
	// BlockRemoved is called when one block with a hash is no longer findable.
	BlockRemoved(h kv.Hash)
	// CacheCleared is called when no block is findable any more.
	CacheCleared()
}

// ResetCache empties the prefix cache. With preempt it first preempts the running sequences, which
// compute everything again. It does nothing and returns false while blocks are in use: those of running
// and frozen sequences, of reservations and of transfers.
func (s *Scheduler) ResetCache(preempt bool) bool {
	for last := len(s.running) - 1; preempt && last >= 0; last-- {
		victim := s.running[last]
		s.running = s.running[:last]
		s.preempt(victim)
	}
	if !s.blocks.Reset() {
		return false
	}
	if s.Cache != nil {
		s.Cache.CacheCleared()
	}
	return true
}
