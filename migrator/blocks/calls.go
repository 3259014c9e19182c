package blocks

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

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
	FirstBlock  int      // number of Blocks[0] within the request
	Blocks      []uint32 // of positions [FirstBlock·BlockTokens, Computed)
	Cached      int      // prompt tokens that were found in the prefix cache
	Prompt      int      // positions that this engine received as the prompt
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
		r, err := l.rpc.Reserve(ctx, &api.ReserveRequest{Session: l.id, Reservation: id, Tokens: uint64(tokens)})
		if status.Code(err) == codes.ResourceExhausted {
			return ErrFull
		}
		if err == nil && len(r.Blocks) < l.description.BlocksFor(tokens) {
			return fmt.Errorf("the engine reserved only %d blocks for %d tokens", len(r.Blocks), tokens)
		}
		blocks = r.GetBlocks()
		return errors.Join(err, l.checkBlocks(blocks))
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
		_, err := l.rpc.MarkFilled(ctx, &api.MarkFilledRequest{Reservation: id, From: uint64(from), Ids: ids, Computed: uint64(computed)})
		return err
	})
}

// Release frees a reservation that no request has adopted. Its blocks must not be written
// any more. An unknown reservation is no error.
func (c *Client) Release(ctx context.Context, id string) error {
	return c.call(ctx, "release", id, callTime, func(ctx context.Context, l *session) error {
		_, err := l.rpc.Release(ctx, &api.ReleaseRequest{Reservation: id})
		return err
	})
}

// NextToken returns how long a request that the engine adopts now waits for its next token.
// It is 0 for an engine that does not report its schedule.
func (c *Client) NextToken(ctx context.Context) (next time.Duration, err error) {
	err = c.call(ctx, "schedule", "", callTime, func(ctx context.Context, l *session) error {
		r, err := l.rpc.Schedule(ctx, &api.ScheduleRequest{})
		if status.Code(err) == codes.Unimplemented {
			return nil
		}
		next = time.Duration(min(r.GetNextTokenUs(), maxSchedule)) * time.Microsecond
		return err
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
		t, err = l.callTable(ctx, leg, from, l.rpc.Table)
		return err
	})
	return t, err
}

// Freeze stops a request at the end of the current iteration and answers like Table. The
// request continues after Thaw, and when the session ends. If Freeze fails for any reason,
// the request continues; to ensure that, a failing call may take a second longer than ctx.
func (c *Client) Freeze(ctx context.Context, leg string, from int) (t Table, err error) {
	err = c.call(ctx, "freeze", leg, freezeTime, func(ctx context.Context, l *session) error {
		if t, err = l.callTable(ctx, leg, from, l.rpc.Freeze); err == nil || nothingToThaw(err) {
			return err
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), thawTime)
		defer cancel()
		if _, bad := l.rpc.Thaw(undo, &api.LegRequest{Leg: leg}); bad != nil && !nothingToThaw(bad) {
			return errors.Join(err, bad)
		}
		return err
	})
	return t, err
}

// nothingToThaw reports whether an error means that there is nothing to thaw.
func nothingToThaw(err error) bool {
	switch status.Code(err) {
	case codes.NotFound, codes.FailedPrecondition, codes.Unavailable:
		return true
	}
	return false
}

// Thaw lets a frozen request continue; it has no effect on one that is not frozen.
func (c *Client) Thaw(ctx context.Context, leg string) error {
	return c.call(ctx, "thaw", leg, callTime, func(ctx context.Context, l *session) error {
		_, err := l.rpc.Thaw(ctx, &api.LegRequest{Leg: leg})
		return err
	})
}

// Drop ends a request that continues elsewhere and frees its blocks; its HTTP response ends
// without an end marker.
func (c *Client) Drop(ctx context.Context, leg string) error {
	return c.call(ctx, "drop", leg, callTime, func(ctx context.Context, l *session) error {
		_, err := l.rpc.Drop(ctx, &api.LegRequest{Leg: leg})
		return err
	})
}

// call runs f with a deadline, maps its error and adds the operation and its object.
func (c *Client) call(ctx context.Context, what, name string, most time.Duration, f func(context.Context, *session) error) error {
	l := c.currentSession()
	if l == nil {
		return fmt.Errorf("engine blocks: %s %s: %w", what, name, ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := f(ctx, l)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	switch status.Code(err) {
	case codes.NotFound:
		err = ErrNotFound
	case codes.FailedPrecondition:
		err = ErrNotComputed
	case codes.Unavailable:
		err = ErrUnavailable
	case codes.DeadlineExceeded:
		err = context.DeadlineExceeded
	case codes.ResourceExhausted:
		err = ErrFull
	case codes.Unimplemented:
		err = ErrNoPrefixes
	}
	return fmt.Errorf("engine blocks: %s %s: %w", what, name, err)
}
