package kvport

import (
	"context"
	"errors"
	"fmt"

	"github.com/cascadeinfer/cascade/engine/api"
)

// Prefix is the beginning of a prompt. Engines find it only among the prompts of the same Model and
// Salt.
type Prefix struct {
	Model string // as the request names it: the model or an adapter
	Salt  string // the request's cache_salt; "" for none
	IDs   []uint32
}

// PinnedPrefix is what PinPrefix keeps.
type PinnedPrefix struct {
	// Cached is how many of the ids have their KV in the engine's prefix cache: whole blocks.
	Cached int
	// BlockTokens is that of the engine that answered, never 0.
	BlockTokens int
	// Blocks hold positions [0, Cached), and, if they were reserved, those after it.
	Blocks []uint32
}

// PinPrefix keeps the blocks in which the engine's prefix cache has the beginning of a prompt, under
// the name of a reservation. With reserve it also reserves blocks for the rest of the prefix's whole
// blocks. It returns ErrFull if a running request might need them, and ErrNoPrefixes if the engine
// cannot do it. The engine frees them like those of Reserve.
func (c *Client) PinPrefix(ctx context.Context, id string, p Prefix, reserve bool) (PinnedPrefix, error) {
	var out PinnedPrefix
	err := c.call(ctx, "pin prefix", id, callTime, func(ctx context.Context, l *session) error {
		r, err := l.conn.Call(ctx, api.Call{Op: api.Pin, Reservation: id, Model: p.Model, CacheSalt: p.Salt, IDs: p.IDs, Rest: reserve})
		switch {
		case codeOf(err) == api.Unsupported:
			return ErrNoPrefixes
		case err != nil:
			return err
		}
		size := l.table.BlockTokens
		want := r.Cached / uint64(size)
		if reserve {
			want = uint64(len(p.IDs) / size)
		}
		if r.Cached > uint64(len(p.IDs)) || r.Cached%uint64(size) != 0 || uint64(len(r.Blocks)) != want {
			return fmt.Errorf("the engine answered %d blocks for %d ids, %d of them cached", len(r.Blocks), len(p.IDs), r.Cached)
		}
		out = PinnedPrefix{Cached: int(r.Cached), BlockTokens: size, Blocks: r.Blocks}
		return l.checkBlocks(r.Blocks)
	})
	if err != nil {
		return PinnedPrefix{}, err
	}
	return out, nil
}

// CommitPrefix reports that the KV of the first tokens is in place and verified in the blocks of a
// PinPrefix with reserve. The engine stores them in its prefix cache and frees the reservation.
func (c *Client) CommitPrefix(ctx context.Context, id string, tokens int) error {
	if tokens < 0 {
		return errors.New("engine blocks: commit prefix " + id + ": the number of tokens must not be negative")
	}
	return c.call(ctx, "commit prefix", id, callTime, func(ctx context.Context, l *session) error {
		_, err := l.conn.Call(ctx, api.Call{Op: api.Commit, Reservation: id, Tokens: uint64(tokens)})
		return err
	})
}
