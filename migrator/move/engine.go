package move

import (
	"context"
	"time"

	"github.com/cascadeinfer/cascade/migrator/kvport"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Engine is an engine that serves its block table; kvport.Client implements it. Its
// methods are safe for concurrent use and return the errors of that package. leg is the
// engine's name of a request; a table leaves out the blocks before position from.
type Engine interface {
	transport.Pool
	// Description returns false while the engine is unavailable.
	Description() (kvport.Description, bool)
	Table(ctx context.Context, leg string, from int) (kvport.Table, error)
	// Freeze stops the request at a step boundary. Freezing a frozen request returns the
	// same table. When Freeze fails, the request continues.
	Freeze(ctx context.Context, leg string, from int) (kvport.Table, error)
	// Thaw lets the request continue, if it is frozen.
	Thaw(ctx context.Context, leg string) error
	// Drop ends the request without any more output.
	Drop(ctx context.Context, leg string) error
	// Reserve reserves blocks for at least that many tokens of a request that will arrive. A
	// call with a larger number extends the reservation.
	Reserve(ctx context.Context, id string, tokens int) ([]uint32, error)
	// MarkFilled reports that ids, which continue those of the last call, belong to the
	// reservation, and that the KV of positions [0, computed) is in place and verified.
	MarkFilled(ctx context.Context, id string, from int, ids []uint32, computed int) error
	// NextToken returns the longest that a request which adopts its reservation soon waits for
	// its next token; 0 if the engine does not know.
	NextToken(ctx context.Context) (time.Duration, error)
	// Release frees a reservation, unless a request has adopted it.
	Release(ctx context.Context, id string) error
	// AbandonSession ends the session, which thaws and releases everything, for an engine
	// that fails Thaw, Drop or Release. It does not block.
	AbandonSession(why error)
}

var _ Engine = (*kvport.Client)(nil)
