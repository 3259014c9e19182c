package kvport

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
)

// Errors of the engine.
var (
	ErrUnavailable = errors.New("the engine's block table is unavailable")
	ErrNotFound    = errors.New("the engine does not know the request or reservation (any more)")
	ErrFull        = errors.New("the engine has not enough free blocks")
	ErrNotComputed = errors.New("the engine has not computed the request yet")
	ErrNoPrefixes  = errors.New("the engine does not show its prefix cache")
)

// Table lists the KV blocks of a request. Block numbers are within the layout.
type Table struct {
	// Generation grows whenever blocks of the request were freed: blocks that were read
	// under an earlier generation are invalid.
	Generation uint64
	Computed   int      // positions [0, Computed) have their KV in the blocks
	Length     int      // prompt and generated tokens, ≥ Computed
	IDs        []uint32 // of positions [from, Length)
	// BlockTokens is that of the engine that answered, never 0. Description may already
	// be another engine's.
	BlockTokens int
	Blocks      []uint32 // of positions [from, Computed), and those before from in the same block
	Cached      int      // prompt tokens that were found in the prefix cache
}

// Reserve reserves blocks for at least so many tokens, under a name that is unique for the
// engine, and returns them in the order of positions. Called again for more, it extends the
// reservation. It returns ErrFull if there are not enough blocks. The engine frees them on
// Release, when the session ends, and when the request that adopted them ends.
func (c *Client) Reserve(ctx context.Context, id string, tokens int) ([]uint32, error) {
	if tokens < 0 {
		return nil, fmt.Errorf("engine blocks: reserve %s: %d tokens: must not be negative", id, tokens)
	}
	var blocks []uint32
	err := c.call(ctx, "reserve", id, callTime, func(ctx context.Context, l *session) error {
		a, err := l.conn.Call(ctx, api.Call{Op: api.Reserve, Reservation: id, Tokens: uint64(tokens)})
		if err != nil {
			return err
		}
		if len(a.Blocks)*l.table.BlockTokens < tokens {
			return fmt.Errorf("the engine reserved only %d blocks for %d tokens", len(a.Blocks), tokens)
		}
		blocks = a.Blocks
		return l.checkBlocks(blocks)
	})
	if err != nil {
		return nil, err
	}
	return blocks, nil
}

// MarkFilled reports that the KV of positions [0, computed) is in place and verified in the
// reservation's blocks, and that ids are the tokens from position from on, where the last
// call ended. The engine may read the blocks before it answers.
func (c *Client) MarkFilled(ctx context.Context, id string, from int, ids []uint32, computed int) error {
	if from < 0 || computed < 0 {
		return fmt.Errorf("engine blocks: mark filled %s: from %d, computed %d: must not be negative", id, from, computed)
	}
	return c.call(ctx, "filled", id, callTime, func(ctx context.Context, l *session) error {
		_, err := l.conn.Call(ctx, api.Call{Op: api.Fill, Reservation: id, From: uint64(from), IDs: ids, Computed: uint64(computed)})
		return err
	})
}

// Release frees a reservation that no request has adopted. Its blocks must not be written
// any more. An unknown reservation is no error.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.call(ctx, "release", id, callTime, func(ctx context.Context, l *session) error {
		_, err := l.conn.Call(ctx, api.Call{Op: api.Release, Reservation: id})
		return err
	})
}

// NextToken returns how long a request that the engine adopts now waits for its next token.
// It is 0 for an engine that does not report its schedule.
func (c *Client) NextToken(ctx context.Context) (next time.Duration, err error) {
	err = c.call(ctx, "schedule", "", callTime, func(ctx context.Context, l *session) error {
		a, err := l.conn.Call(ctx, api.Call{Op: api.Schedule})
		switch {
		case codeOf(err) == api.Unsupported:
			return nil
		case err != nil:
			return err
		}
		next = time.Duration(min(a.NextTokenUS, maxSchedule)) * time.Microsecond
		return nil
	})
	return next, err
}

// maxSchedule bounds, in microseconds, what an engine reports.
const maxSchedule = 3600e6

// Table lists the blocks of a running request from position from on. leg is the value of the
// request's X-Cascade-Leg header. It returns ErrNotComputed if the request has not generated
// a token, or was preempted and waits.
func (c *Client) Table(ctx context.Context, leg string, from int) (t Table, err error) {
	err = c.call(ctx, "table", leg, callTime, func(ctx context.Context, l *session) error {
		t, err = l.callTable(ctx, api.List, leg, from)
		return err
	})
	return t, err
}

// Freeze stops a request at the end of the current iteration and answers like Table. The
// request continues after Thaw, and when the session ends. If Freeze fails for any reason,
// the request continues; to ensure that, a failing call may take a second longer than ctx.
func (c *Client) Freeze(ctx context.Context, leg string, from int) (t Table, err error) {
	err = c.call(ctx, "freeze", leg, freezeTime, func(ctx context.Context, l *session) error {
		if t, err = l.callTable(ctx, api.Freeze, leg, from); err == nil || nothingToThaw(err) {
			return err
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTime)
		defer cancel()
		if _, bad := l.conn.Call(undo, api.Call{Op: api.Thaw, Leg: leg}); bad != nil && !nothingToThaw(bad) {
			return errors.Join(err, bad)
		}
		return err
	})
	return t, err
}

// nothingToThaw reports whether an error means that there is nothing to thaw.
func nothingToThaw(err error) bool {
	switch codeOf(err) {
	case api.NotFound, api.NotComputed, api.Unavailable:
		return true
	}
	return errors.Is(err, api.ErrConnectionEnded)
}

// codeOf returns the code of a refusal, "" for other errors.
func codeOf(err error) api.Code {
	if r := (*api.Refusal)(nil); errors.As(err, &r) {
		return r.Code
	}
	return ""
}

// errorOf are the errors of this package for codes of the engine.
var errorOf = map[api.Code]error{
	api.NotFound: ErrNotFound, api.NotComputed: ErrNotComputed, api.Unavailable: ErrUnavailable, api.Full: ErrFull,
}

// Thaw lets a frozen request continue; it has no effect on one that is not frozen.
func (c *Client) Thaw(ctx context.Context, leg string) error {
	return c.call(ctx, "thaw", leg, callTime, func(ctx context.Context, l *session) error {
		_, err := l.conn.Call(ctx, api.Call{Op: api.Thaw, Leg: leg})
		return err
	})
}

// Drop ends a request that continues elsewhere and frees its blocks; its HTTP response ends
// without an end marker.
func (c *Client) Drop(ctx context.Context, leg string) error {
	return c.call(ctx, "drop", leg, callTime, func(ctx context.Context, l *session) error {
		_, err := l.conn.Call(ctx, api.Call{Op: api.Drop, Leg: leg})
		return err
	})
}

// call runs f with a deadline, maps its error and adds the operation and its object.
func (c *Client) call(ctx context.Context, what, name string, most time.Duration, f func(context.Context, *session) error) error {
	l := c.session()
	if l == nil || l.table == nil {
		return fmt.Errorf("engine blocks: %s %s: %w", what, name, ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := f(ctx, l)
	if err == nil {
		return nil
	}
	switch known := errorOf[codeOf(err)]; {
	case ctx.Err() != nil:
		err = ctx.Err()
	case known != nil:
		err = known
	case errors.Is(err, api.ErrConnectionEnded):
		err = ErrUnavailable
	}
	return fmt.Errorf("engine blocks: %s %s: %w", what, name, err)
}
