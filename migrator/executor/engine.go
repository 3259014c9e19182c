package executor

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Pool tells about an engine's blocks.
type Pool interface {
	// Description returns false while the engine is away.
	Description() (blocks.Description, bool)
	transport.Pool
}

// BlockTables tells where requests are; leg is the engine's name of the request, and
// what lies before position from is left out. See blocks.Client.
type BlockTables interface {
	Table(ctx context.Context, leg string, from int) (blocks.Table, error)
	// Freeze stops the request at a step boundary; freezing a frozen one answers
	// the same. When it fails, the request goes on.
	Freeze(ctx context.Context, leg string, from int) (blocks.Table, error)
}

// Unfreezer lets go of what is frozen.
type Unfreezer interface {
	// Thaw lets the request go on; one that runs already does.
	Thaw(ctx context.Context, leg string) error
	// Drop ends the request without any more output.
	Drop(ctx context.Context, leg string) error
	// AbandonSession ends the session, and with it all that is frozen or reserved: for an
	// engine that does neither Thaw, Drop nor Release. It does not block.
	AbandonSession(why error)
}

// Reservations keeps blocks for requests that are to come.
type Reservations interface {
	// Reserve sets blocks aside for at least that many tokens. Asked again for
	// more, it returns the same and more.
	Reserve(ctx context.Context, id string, tokens int) ([]uint32, error)
	// MarkFilled says that ids, which begin where the last call ended, are the
	// reservation's, and that positions [0, computed) are in place and verified.
	MarkFilled(ctx context.Context, id string, from int, ids []uint32, computed int) error
	// Release frees a reservation, unless a request has adopted it.
	Release(ctx context.Context, id string) error
}

// Engine is an engine that serves its block table: migrator/blocks. Its methods
// are safe for concurrent use; errors are those of that package.
type Engine interface {
	Pool
	BlockTables
	Unfreezer
	Reservations
}

var _ Engine = (*blocks.Client)(nil)
