package frontend

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/dialect"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/enginestate"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// Defaults, and bounds of every boundary.
const (
	defaultBodies           = 16               // times MaxBody
	defaultBodyTimeout      = 30 * time.Second // for a request's body to arrive
	defaultIdleTimeout      = 10 * time.Minute // between two events of an engine; queueing and prefill included
	defaultWriteTimeout     = time.Minute      // for a client to take some bytes
	defaultDrainTimeout     = 10 * time.Minute
	defaultHealthInterval   = time.Second
	recentWindow            = 2 * time.Second // over which the time between tokens is averaged
	defaultMigrationTimeout = 10 * time.Second
	defaultRescueTimeout    = 30 * time.Second
	defaultHangTimeout      = 15 * time.Second
	defaultHealthTimeout    = 4 * time.Second
	retireGrace             = 500 * time.Millisecond // from Retire until connections are closed, and between checks for HTTP/1 ones that are left
	updateInterval          = 250 * time.Millisecond
	dialTimeout             = 5 * time.Second  // a busy machine may take seconds
	headerTimeout           = 10 * time.Second // for a request's header to arrive
	clientIdleConn          = 5 * time.Minute  // a client's connection without a request
	maxHeader               = 64 << 10         // bytes of request headers
	maxStreams              = 1 << 14          // concurrent streams of one HTTP/2 connection
	maxTokensPerByte        = 2                // tokens that a byte of a body can stand for, at most
	maxInspected            = 1 << 20          // bytes of an unstreamed answer that are parsed
	engineIdleConn          = 4 * time.Second  // below the 5 s after which uvicorn closes an idle connection
)

// Config configures a Server.
type Config struct {
	// Replica names the replica in logs and to the peers it forwards to.
	// Required.
	Replica policies.ReplicaID
	// Engine is the base URL of the replica's engine, for instance
	// http://127.0.0.1:8000. Required; HTTP/1.1.
	Engine string
	// Edges are the length buckets of flow and snapshots, as the planner wants
	// them (policies.BucketEdges). Required.
	Edges []policies.Tokens
	// FlowTau is the time constant with which the flow counters forget; 0 means
	// partition.DefaultTau seconds.
	FlowTau time.Duration

	// Model is the name under which the engine must serve the replica's model, and Context
	// the longest sequence that it must take. An engine that states otherwise is not ready.
	// If Model is "" neither is checked.
	Model   string
	Context policies.Tokens
	// KVTokens is the size of the engine's KV cache, where the engine does not report it;
	// 0 means unknown. Answers report the share of the cache that is in use, if its size is
	// known.
	KVTokens policies.Tokens
	// KVStated says that an operator has stated KVTokens: then it counts if the engine
	// reports a larger cache, and a difference is warned of.
	KVStated bool

	// Cost is what the engine's steps cost. An engine that brings nothing for much longer
	// than its present work should take counts as away (enginestate.Monitor). If it is zero,
	// only the least time counts.
	Cost policies.Cost

	// Listener takes the clients (Envoy). It is closed while the engine is away,
	// and then Listen opens the same address again; Drain closes it for good.
	// Copies of it in other processes are not affected. If it is nil the caller
	// serves Handler, and only the answers show that the engine is away.
	Listener net.Listener
	// PeerListener takes the other migrators until Run returns or the caller
	// closes it, which leaves its connections open. It may be a TLS listener,
	// which then offers h2 for PeerRPC. If it is nil the caller serves
	// PeerHandler.
	PeerListener net.Listener
	// Listen opens a listener; nil means net.Listen.
	Listen func(network, address string) (net.Listener, error)
	// Dial opens connections to the engine; nil means a net.Dialer with a timeout of 5 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialPeer opens connections to other migrators if Peers is nil; nil means Dial.
	DialPeer func(ctx context.Context, network, address string) (net.Conn, error)

	// Placer chooses where a request starts; if it is nil all requests start at
	// the own engine.
	Placer Placer
	// LegObserver is called for the requests on the own engine; nil: none is.
	LegObserver LegObserver
	// Handoff lets streams move with their KV between engines that have a KV connector
	// (package handoff); whether they have is learnt from their answers. If it is false,
	// a stream that moves without a Reservation is always computed anew.
	Handoff bool
	// Dialects are those that the engine may speak; the first is spoken with one that does not say which.
	// nil means known.Dialects.
	Dialects []dialect.Dialect
	// KVConnector returns what is known of the engine's KV connector, if this process is
	// connected to it (migrator/kvport); nil: what the engine shows by itself. It must
	// not block.
	KVConnector func() engineinfo.KVConnector
	// PrefixPull lets requests begin with KV of peers; if it is nil none does.
	PrefixPull *PrefixPull
	// FetchPrefill reports whether the KV of a prompt that a prefill replica computes is fetched
	// by the engines' KV connectors before the request begins, at the own engine, as where no
	// block table is served. It needs Handoff, and must not block. Otherwise, and if it is nil,
	// the request begins at the prefill replica, and moves with its first token.
	FetchPrefill func() bool
	// Adopter knows the reservations of live migrations to the own engine; if it
	// is nil the server adopts none.
	Adopter Adopter
	// Rescuer names replicas for streams whose engine was lost; if it is nil
	// these streams end with an error event.
	Rescuer Rescuer
	// PeerRPC serves the migrators' gRPC on the peers' port; nil means none.
	PeerRPC http.Handler
	// Peers carries forwards to other migrators. nil means plain HTTP/1.1, which
	// is for loopback; elsewhere the caller passes one with mutual TLS and sets
	// PeerScheme to "https". A transport that is passed must itself bound the
	// wait for an answer's header.
	Peers http.RoundTripper
	// PeerScheme is "http" (the default) or "https".
	PeerScheme string
	// TrustDomain, unless it is "", makes the server accept a peer's leg only if
	// it came with the certificate of the migrator whose front end it names
	// (internal/identity). The peers' listener must then demand certificates and
	// verify their chains.
	TrustDomain string

	// Overload configures which requests are refused because they would wait for too
	// long. Without Cost and KVTokens none is.
	Overload Overload

	// Admit, unless it is nil, is called for every new request and every peer's leg;
	// with an error the request is refused, so that proxies send it to another
	// replica. It must not block.
	Admit func() error
	// MaxBody bounds a request's body in bytes; 0 means 16 MiB.
	MaxBody int64
	// MaxBodies bounds the memory, in bytes, of all requests that arrive or wait for the
	// engine's answer, copies included; those beyond it are refused. As much again is for
	// peers' legs, each of which may take all of it, and for answers that clients read too slowly. 0 means 16 times
	// MaxBody.
	MaxBodies int64
	// BodyRate is the slowest rate of a body, in bytes per second: every 10 s must bring that
	// much. 0 means 32 KiB in 10 s.
	BodyRate int64
	// BodyTimeout bounds the reading of a body; 0 means 30 s.
	BodyTimeout time.Duration
	// IdleTimeout is how long an engine may send nothing before its answer is
	// given up, the wait for the first token included. The first byte of an
	// unstreamed answer follows its last token. 0 means 10 min.
	IdleTimeout time.Duration
	// HangTimeout is how long an engine that makes progress may pause in the middle of
	// one answer before that stream is rescued; the pause is noticed up to a quarter of
	// it later. It applies while the requests at the engine take less than half of
	// KVTokens: a fuller engine may have preempted the request, and IdleTimeout applies,
	// as it does to streams that cannot be rescued. After an engine was found to make no
	// progress at all, HangTimeout is how long those wait for it to go on. It is also how
	// long an engine may take to begin an answer that its core does not compute. 0 means
	// 15 s.
	HangTimeout time.Duration
	// MinPause is how long an engine with work must bring nothing, at least, before it counts as hung and so as
	// away (enginestate.Monitor); 0 means 2 s.
	MinPause time.Duration
	// MigrationTimeout is how long a client may wait for its stream's first token
	// from another replica before the migration is given up; 0 means 10 s. The holder of
	// the KV has a twentieth of it to hand the KV over.
	MigrationTimeout time.Duration
	// TokenizeTimeout bounds how long a request waits for the own engine to say the ids of
	// its prompt; 0 means 100 ms. Without them it is placed by what is known.
	TokenizeTimeout time.Duration
	// RescueTimeout is how long a stream that lost its engine waits for the first
	// token of each other engine, and for the own engine to come back if the
	// Rescuer names no replica; 0 means 30 s.
	RescueTimeout time.Duration
	// WriteTimeout is how long a client may take to read 64 KiB of what is sent to it
	// before its answer is cut; time in which it has read everything does not count. 0 means
	// 1 min.
	WriteTimeout time.Duration
	// DrainTimeout bounds the life of streams after Drain; 0 means 10 min.
	DrainTimeout time.Duration
	// HealthInterval is the time between two checks of the engine's health; 0
	// means 1 s. Two failures in a row mean that the engine is away; a refused
	// connection means so at once.
	HealthInterval time.Duration
	// HealthTimeout is how long the engine may take to answer a check; 0 means 4
	// s. An engine that answers none but generates meanwhile is not away. One
	// that does neither loses its requests to other engines after another
	// HangTimeout.
	HealthTimeout time.Duration

	// Tracer creates a span for each request and each peer's leg; nil creates none, and
	// passes traceparent on as it is.
	Tracer trace.Tracer
	// OnRescue, unless it is nil, is called for every stream that lost its engine
	// once its outcome is decided. It is called on the stream's goroutine, by
	// several at once, and must not block.
	OnRescue func(Rescue)
	// OnServed, unless it is nil, is called for every request that got a stream of tokens,
	// once that has ended; answers that are assembled from a stream count, answers that are
	// relayed as they come do not. It is called as OnRescue is.
	OnServed func(Served)
	// OnPrefill, unless it is nil, is called after each prompt that a prefill replica should
	// compute, with FetchPrefill: fetched says that its KV has come. It is called on the
	// request's goroutine, by several at once, and must not block.
	OnPrefill func(from policies.ReplicaID, fetched bool)
	// Logger logs what an operator should know; nil discards.
	Logger *slog.Logger
}

// validate fills in the defaults and reports the first field that is wrong.
func (c Config) validate() (Config, *url.URL, error) {
	if c.Replica == "" {
		return c, nil, errors.New("frontend: Replica: must not be empty")
	}
	invalid := func(format string, args ...any) (Config, *url.URL, error) {
		return c, nil, fmt.Errorf("frontend of %s: %w", c.Replica, fmt.Errorf(format, args...))
	}
	engine, err := url.Parse(c.Engine)
	if err != nil || engine.Scheme != "http" || engine.Host == "" {
		return invalid("Engine: %q: must be a URL like http://127.0.0.1:8000", c.Engine)
	}
	engine.Path = cmp.Or(engine.Path, "/") // what JoinPath needs to make rooted paths
	if err := policies.NewFlow(c.Edges).Validate(); err != nil {
		return invalid("Edges: %w", err)
	}
	if c.PeerScheme = cmp.Or(c.PeerScheme, "http"); c.PeerScheme != "http" && c.PeerScheme != "https" {
		return invalid("PeerScheme: %q: must be http or https", c.PeerScheme)
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return invalid("TrustDomain: %w", err)
		}
	}
	c.MaxBody = cmp.Or(c.MaxBody, length.BodyLimit)
	c.MaxBodies = cmp.Or(c.MaxBodies, defaultBodies*c.MaxBody)
	switch p := c.PrefixPull; {
	case c.MaxBody < 0:
		return invalid("MaxBody: %d: must not be negative", c.MaxBody)
	case c.BodyRate < 0:
		return invalid("BodyRate: %d: must not be negative", c.BodyRate)
	case c.MaxBodies < 2*c.MaxBody:
		return invalid("MaxBodies: %d: must be at least twice MaxBody, %d", c.MaxBodies, c.MaxBody)
	case p != nil && (p.Holders == nil || p.Link == nil || p.TokenBytes <= 0):
		return invalid("PrefixPull: Holders, Link and TokenBytes are required")
	case c.FetchPrefill != nil && !c.Handoff:
		return invalid("FetchPrefill: needs Handoff")
	}
	if err := c.completeDurations(); err != nil {
		return invalid("%w", err)
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	}
	if c.DialPeer == nil {
		c.DialPeer = c.Dial
	}
	if c.Admit == nil {
		c.Admit = func() error { return nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, engine, nil
}

// completeDurations gives the durations that are 0 their defaults.
func (c *Config) completeDurations() error {
	for _, d := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"FlowTau", &c.FlowTau, time.Duration(partition.DefaultTau * float64(time.Second))},
		{"BodyTimeout", &c.BodyTimeout, defaultBodyTimeout},
		{"IdleTimeout", &c.IdleTimeout, defaultIdleTimeout},
		{"HangTimeout", &c.HangTimeout, defaultHangTimeout},
		{"MinPause", &c.MinPause, enginestate.MinPause},
		{"MigrationTimeout", &c.MigrationTimeout, defaultMigrationTimeout},
		{"TokenizeTimeout", &c.TokenizeTimeout, tokenizeTimeout},
		{"RescueTimeout", &c.RescueTimeout, defaultRescueTimeout},
		{"WriteTimeout", &c.WriteTimeout, defaultWriteTimeout},
		{"DrainTimeout", &c.DrainTimeout, defaultDrainTimeout},
		{"HealthInterval", &c.HealthInterval, defaultHealthInterval},
		{"HealthTimeout", &c.HealthTimeout, defaultHealthTimeout},
	} {
		if *d.value < 0 {
			return fmt.Errorf("%s: %v: must not be negative", d.name, *d.value)
		}
		*d.value = cmp.Or(*d.value, d.or)
	}
	return nil
}

// Placer chooses where a request starts.
type Placer interface {
	// Prefills reports whether Place may return a prefill replica, and HasHolders whether any
	// peer is known to hold the KV of prompts. Unless one of them does, Place learns nothing
	// of a prompt's tokens.
	Prefills() bool
	HasHolders() bool
	// Place returns the peer to forward the request to, or the zero Target for
	// the own engine. Request.Cached is how much of the prompt the own engine holds, and steps
	// are the prompt's, as far as they are known; Place does not keep them. It is called on
	// the request's goroutine, by many at once, and must not block. If the peer refuses or
	// fails before its first token, only time is lost: the own engine then serves the request.
	Place(r policies.Request, steps []prefix.Step) policies.Target
}

// Rescuer names replicas for streams whose engine was lost.
type Rescuer interface {
	// Rescue returns where the stream may go on by re-prompting, and false if
	// there is no such replica. tried are the replicas that failed it, including
	// the one that was lost; the own replica is returned like any other. Rescue
	// is called on the stream's goroutine, by many at once, and must not block.
	Rescue(r policies.Request, tried []policies.ReplicaID) (policies.Target, bool)
}

// Adopter knows the reservations that live migrations have filled at the own
// engine.
type Adopter interface {
	// Adopt returns the kv_transfer_params with which the own engine takes over a
	// migrated request; request is its id at the front end that owns it. The
	// error says that there is no such reservation, or none any more. Adopt is
	// called on the request's goroutine and must not block.
	Adopt(reservation, request string, frontEnd policies.ReplicaID) (params json.RawMessage, err error)
}
