package executor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
	"github.com/cascadeinfer/cascade/policies/links"
)

// The bounds.
const (
	engineTimeout    = 3 * time.Second        // for one call to the engine
	engineRetryDelay = 100 * time.Millisecond // before the engine is asked to thaw or drop once more
	releaseTimeout   = 30 * time.Second       // for an engine to thaw, drop or release; then its session ends
	adoptTimeout     = time.Second            // for the machine to be asked
	grantLifetime    = 2 * time.Minute        // of a ticket: longer than a move may take
	probeInterval    = 100 * time.Millisecond // between two looks at which probes are due
	probeTimeout     = 2 * time.Second
	maxFinished      = 256     // moves that are over
	maxInbox         = 1 << 14 // messages that wait; more are lost
	minSlack         = 256     // tokens that a request may grow by while it moves, at least
	slackShare       = 8       // and this share of its length

	defaultEnvelope = 8 << 20
	envelopeRoom    = 4 << 10 // bytes of a message beside its table
	maxVarintBytes  = 5       // of an id, a block or a sum, at most
)

// Streams hands over what belongs to the own front's clients.
type Streams interface {
	// Migrate hands a stream over; see frontend.Server.
	Migrate(ctx context.Context, m frontend.Migration) (frontend.MigrationResult, error)
	// Holder tells where a stream runs, false when it is over.
	Holder(id string) (frontend.Holder, bool)
}

// LocalLegs are the requests that run on the own engine.
type LocalLegs interface {
	LocalLegs() []frontend.LocalLeg
	// AdvanceEpoch says in which epoch a request goes on that has stayed here.
	AdvanceEpoch(id string, epoch policies.Epoch)
}

// FrontEnd is the replica's own front: migrator/frontend.
type FrontEnd interface {
	Streams
	LocalLegs
}

var _ FrontEnd = (*frontend.Server)(nil)

// Network carries messages: migrator/peer.
type Network interface {
	// Send never blocks and promises nothing.
	Send(to policies.ReplicaID, e *api.Envelope)
}

// Config is what a Mover needs.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// Engine serves the own engine's block table; nil means that it has none and
	// that all moves are by Reprompt.
	Engine Engine
	// FrontEnd is the own front. Required.
	FrontEnd FrontEnd
	// Network reaches the other replicas. Required.
	Network Network
	// Transports carry blocks, best first. They are probed here and run by the
	// caller. Their names differ.
	Transports []transport.Transport
	// Address tells where a replica's peer listener is, "" for unknown. Required.
	Address func(policies.ReplicaID) string
	// Host tells on which machine a replica runs; nil means all on one.
	Host func(policies.ReplicaID) string
	// Ways tells what lies between a replica and this one, from there to here, best
	// first (links.Paths), nil where that is not known. It must not block. nil: nothing
	// is known, and transports are tried in their order.
	Ways func(policies.ReplicaID) []links.Path
	// MaxEnvelope is how many bytes Network carries at once: what a request's blocks
	// take more to name is told in parts. 0 means 8 MiB, as migrator/peer has it.
	MaxEnvelope int
	// LinkRate is the rate in bytes per second that incoming KV is paced to, true
	// bytes of all moves together; 0 means as fast as it comes.
	LinkRate int64
	// Notify takes what the market is to know: Reserved, Refused, Moved, Failed. It
	// is called on the mover's goroutine and must not block. Required.
	Notify func(bidask.Event)
	// OnEnd takes each move that is over, for metrics; nil for nobody. It is
	// called on the mover's goroutine and must not block.
	OnEnd func(Migration)
	// Transfer sets the machine up; its Self is filled in.
	Transfer transfer.Config
	// Tracer makes the spans of moves; nil makes none.
	Tracer trace.Tracer
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Self == "":
		return c, errors.New("mover: Self must name the own replica")
	case c.FrontEnd == nil || c.Network == nil || c.Notify == nil || c.Address == nil:
		return c, fmt.Errorf("mover of %s: Front, Network, Address and Tell are required", c.Self)
	case c.MaxEnvelope < 0 || c.MaxEnvelope > 0 && c.MaxEnvelope < 2*envelopeRoom:
		return c, fmt.Errorf("mover of %s: Envelope %d is too small: want %d bytes at least", c.Self, c.MaxEnvelope, 2*envelopeRoom)
	case c.LinkRate < 0:
		return c, fmt.Errorf("mover of %s: Link %d must not be negative", c.Self, c.LinkRate)
	}
	if c.MaxEnvelope == 0 {
		c.MaxEnvelope = defaultEnvelope
	}
	if c.Host == nil {
		c.Host = func(policies.ReplicaID) string { return "one" }
	}
	if c.OnEnd == nil {
		c.OnEnd = func(Migration) {}
	}
	if c.Tracer == nil {
		c.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	c.Transfer.Self = c.Self
	return c, nil
}
