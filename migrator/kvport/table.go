package kvport

import (
	"context"
	"fmt"

	"github.com/cascadeinfer/cascade/engine/api"
)

// callTable requests a table and validates it.
func (s *session) callTable(ctx context.Context, op api.Op, leg string, from int) (Table, error) {
	if from < 0 {
		return Table{}, fmt.Errorf("position %d must not be negative", from)
	}
	a, err := s.conn.Call(ctx, api.Call{Op: op, Leg: leg, From: uint64(from)})
	if err != nil {
		return Table{}, err
	}
	return s.decodeTable(a, from)
}

// decodeTable validates and converts an engine's answer for the positions from from on.
func (s *session) decodeTable(r *api.Answer, from int) (Table, error) {
	const most = 1 << 40 // no sum below overflows
	first, size := from/s.table.BlockTokens, uint64(s.table.BlockTokens)
	bad := func(format string, args ...any) (Table, error) {
		return Table{}, fmt.Errorf("invalid table of the engine: "+format, args...)
	}
	switch {
	case r.Length > most || r.Computed > r.Length || r.Prompt > r.Length || r.Cached > r.Prompt:
		return bad("%d tokens, %d computed, %d of the prompt, %d of these cached", r.Length, r.Computed, r.Prompt, r.Cached)
	case uint64(from)+uint64(len(r.IDs)) != r.Length:
		return bad("%d ids from position %d on, of %d tokens", len(r.IDs), from, r.Length)
	case r.FirstBlock != uint64(first):
		return bad("first block is %d, want %d", r.FirstBlock, first)
	}
	want := uint64(0)
	if begin := uint64(first) * size; r.Computed > begin {
		want = (r.Computed - begin + size - 1) / size
	}
	if uint64(len(r.Blocks)) != want {
		return bad("%d blocks for positions %d to %d", len(r.Blocks), uint64(first)*size, r.Computed)
	}
	if err := s.checkBlocks(r.Blocks); err != nil {
		return Table{}, err
	}
	return Table{
		Generation: r.Generation, Computed: int(r.Computed), Length: int(r.Length), IDs: r.IDs,
		BlockTokens: s.table.BlockTokens, Blocks: r.Blocks, Cached: int(r.Cached),
	}, nil
}

// checkBlocks returns an error for blocks that are not in the pool.
func (s *session) checkBlocks(blocks []uint32) error {
	for _, b := range blocks {
		if int64(b) >= int64(s.memory.Blocks) {
			return fmt.Errorf("the engine returned block %d of a pool of %d blocks", b, s.memory.Blocks)
		}
	}
	return nil
}
