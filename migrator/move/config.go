package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// Timeouts and limits.
const (
	engineTimeout = 3 * time.Second // for one call to the engine
	adoptTimeout  = time.Second     // for the state machine's answer to Adopt
	grantLifetime = 2 * time.Minute // of a ticket: longer than a migration may take
	// A client whose stream moves waits for the source's freeze and the target's first token.
	maxNextToken    = 250 * time.Millisecond // a target that needs longer for a token is not asked to take over
	maxScheduleWait = 10 * time.Second       // but for no longer than this in one migration: then it never gets faster
	shortBlocks     = 8                      // of a request so short that its source may freeze it at once
	minScheduleWait = 10 * time.Millisecond  // between two questions

	maxFinished = 256     // finished migrations that are kept
	maxInbox    = 1 << 14 // waiting events; further messages of peers are dropped
	minSlack    = 256     // minimum number of tokens by which a request may grow while it migrates
	slackShare  = 8       // divisor of the request's length that may be added to it

	defaultEnvelope = 8 << 20
	envelopeRoom    = 4 << 10 // bytes of a message without its table
	maxVarintBytes  = 5       // maximum size of an encoded id, block number or checksum
)

// FrontEnd is the replica's own front end, a frontend.Server: it switches its streams to other
// replicas, and knows this replica's engine and the requests that run on it.
type FrontEnd interface {
	// Migrate continues a stream at another replica; see frontend.Server.
	Migrate(ctx context.Context, m frontend.Migration) (frontend.MigrationResult, error)
	// Holder returns where a stream runs, or false if it has ended.
	Holder(id string) (frontend.Holder, bool)
	LocalLegs() []frontend.LocalLeg
	// AdvanceEpoch sets the epoch of a request whose migration failed.
	AdvanceEpoch(id string, epoch policies.Epoch)
	// FreezeLeg records that the engine has stopped a leg between two steps, or that the
	// leg goes on: meanwhile its silence is not the engine's.
	FreezeLeg(name string, frozen bool)
	// KVConnector returns what is known of the engine's KV connector, and whether the engine
	// is too busy to hand KV over soon.
	KVConnector() (c engineinfo.KVConnector, busy bool)
}

var _ FrontEnd = (*frontend.Server)(nil)

// Config configures an Executor.
type Config struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// Engine serves the block table of this replica's engine. It is nil if the engine has none;
	// then all migrations are by Reprompt.
	Engine Engine
	// FrontEnd returns this replica's front end. It is called while Run runs. Required.
	FrontEnd func() FrontEnd
	// Send sends a message to another replica. It never blocks and does not guarantee delivery.
	// Required.
	Send func(to policies.ReplicaID, e *api.Envelope)
	// Paths pull the blocks of Engine from other replicas and export them. The caller runs them.
	// Required; without an Engine they have no transports that the Executor uses.
	Paths *transport.Paths
	// Address returns the address of a replica's peer listener, "" if unknown. Required.
	Address func(policies.ReplicaID) string
	// MaxEnvelope is the maximum number of bytes of one message. A larger table is sent
	// in parts. 0 means 8 MiB, as in migrator/peer.
	MaxEnvelope int
	// Notify receives the market's events: Reserved, ReservationRefused, TransferDone
	// and TransferFailed. It is called on Run's goroutine and must not block. Required.
	Notify func(bidask.Event)
	// OnEnd receives each finished migration, for metrics; it may be nil. It is called
	// on Run's goroutine and must not block.
	OnEnd func(Migration)
	// OnStall receives how long each migration or rescue kept its client without a token,
	// and the span of it, which is not valid without tracing; it may be nil. It is called
	// with a lock held, by several goroutines, and must not block or call the Executor.
	OnStall func(stall time.Duration, span trace.SpanContext)
	// Limits bounds the steps of a migration; Self is filled in.
	Limits Limits
	// Tracer creates the spans of migrations; nil creates none.
	Tracer trace.Tracer
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Self == "":
		return c, errors.New("migration executor: Self must name this replica")
	case c.FrontEnd == nil || c.Send == nil || c.Notify == nil || c.Address == nil || c.Paths == nil:
		return c, fmt.Errorf("migration executor of %s: FrontEnd, Send, Paths, Address and Notify are required", c.Self)
	case c.MaxEnvelope < 0 || c.MaxEnvelope > 0 && c.MaxEnvelope < 2*envelopeRoom:
		return c, fmt.Errorf("migration executor of %s: MaxEnvelope %d is too small: at least %d bytes are required", c.Self, c.MaxEnvelope, 2*envelopeRoom)
	}
	if c.MaxEnvelope == 0 {
		c.MaxEnvelope = defaultEnvelope
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
	c.Limits.Self = c.Self
	return c, nil
}
