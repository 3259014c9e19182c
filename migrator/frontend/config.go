package frontend

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/flow"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// The defaults and bounds of every boundary.
const (
	defaultMaxBody      = 16 << 20         // bytes: what the proxies buffer for a retry
	defaultBodyTimeout  = 30 * time.Second // to read a request's body
	defaultIdleTimeout  = 10 * time.Minute // between two events of an engine; queueing and prefill included
	defaultWriteTimeout = time.Minute      // for a client to take some bytes
	defaultDrainTimeout = 10 * time.Minute
	defaultHealthEvery  = time.Second
	defaultRecent       = 2 * time.Second
	defaultMove         = 10 * time.Second
	defaultRescue       = 30 * time.Second
	defaultHang         = 15 * time.Second
	defaultHealth       = 4 * time.Second
	healthRetry         = 100 * time.Millisecond // while the engine is away
	retireGrace         = 500 * time.Millisecond // from Retire until connections without a request are closed
	updateInterval      = 250 * time.Millisecond
	dialTimeout         = 5 * time.Second  // a busy machine takes seconds for what takes none
	headerTimeout       = 10 * time.Second // to read a request's header
	clientIdleConn      = 5 * time.Minute  // a client's connection without a request
	maxHeader           = 64 << 10         // bytes of request headers
	maxStreams          = 1 << 14          // concurrent streams of one HTTP/2 connection
	maxTokensPerByte    = 2                // stated tokens that a byte of a body can stand for
	maxInspected        = 1 << 20          // bytes of an unstreamed answer that are looked into
	engineIdleConn      = 4 * time.Second  // below the 5 s after which uvicorn closes an idle connection
)

// Config is what a Front needs.
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
	// flow.DefaultTau seconds.
	FlowTau time.Duration

	// KVTokens is the size of the engine's KVTokens cache. Answers tell which share of it is in
	// use; 0: they tell nothing.
	KVTokens policies.Tokens

	// Listener takes the clients (Envoy). While the engine is away it is
	// closed, and Listen opens the same address again; Drain closes it. Another
	// process's copy of it is left alone. nil means that the
	// caller serves Handler, and that only the answers tell that the engine is
	// away.
	Listener net.Listener
	// PeerListener takes the other migrators, as long as Run runs or until the
	// caller closes it, which leaves its connections alone. It may be one of TLS,
	// and then offers h2 for PeerRPC. nil means that the caller serves PeerHandler.
	PeerListener net.Listener
	// Listen opens a listener; nil means net.Listen.
	Listen func(network, address string) (net.Listener, error)

	// Placer chooses where a request starts; nil starts all at the own engine.
	Placer Placer
	// Adopter names the reservations of live moves to the own engine; nil means
	// that it adopts none.
	Adopter Adopter
	// Rescuer names replicas for streams that lost theirs; nil ends them with an
	// error event.
	Rescuer Rescuer
	// PeerRPC serves the migrators' gRPC, on the peers' port; nil means none.
	PeerRPC http.Handler
	// Peers carries forwards to other migrators. nil means plain HTTP/1.1,
	// which is for loopback; off it, cmd gives one with mutual TLS and Scheme
	// "https". One that is given bounds the wait for an answer's header itself.
	Peers http.RoundTripper
	// PeerScheme is "http" (the default) or "https".
	PeerScheme string
	// TrustDomain binds the front that a peer's leg names to the certificate with
	// which it came: it must be that of the replica's migrator there
	// (policies/identity). The peers' listener must demand certificates and verify
	// their chains. "" binds nothing.
	TrustDomain string

	// MaxBody bounds a request's body in bytes; 0 means 16 MiB.
	MaxBody int64
	// BodyTimeout bounds the reading of a body; 0 means 30 s.
	BodyTimeout time.Duration
	// IdleTimeout is how long an engine may send nothing of an answer before it
	// is given up, the wait for the first token included; an unstreamed answer
	// has its first byte after its last token. 0 means 10 min.
	IdleTimeout time.Duration
	// HangTimeout is how long an engine may pause in the middle of an answer
	// before the stream is rescued; where it could not be, IdleTimeout counts.
	// It is found out up to a quarter later. 0 means 15 s.
	HangTimeout time.Duration
	// MigrationTimeout is how long a client may wait for its stream's first token from
	// another replica before the move is given up; 0 means 10 s.
	MigrationTimeout time.Duration
	// RescueTimeout is how long a stream that lost its engine waits for the first
	// token of each other one, and for the own one to come back when the Rescuer
	// names none; 0 means 30 s.
	RescueTimeout time.Duration
	// WriteTimeout is how long a client may take nothing of what waits for it
	// before its answer is cut; 0 means 1 min.
	WriteTimeout time.Duration
	// DrainTimeout bounds the life of streams after Drain; 0 means 10 min.
	DrainTimeout time.Duration
	// HealthInterval is the time between two looks at the engine's /health; 0
	// means 1 s. Two failures in a row mean that the engine is away, a refused
	// connection means it at once.
	HealthInterval time.Duration
	// HealthTimeout is how long the engine may take to answer a look; 0 means
	// 4 s. One that answers none, and generates meanwhile, is not away. One that
	// does neither loses its requests to other engines after HangTimeout more.
	HealthTimeout time.Duration
	// RecentWindow is how far back the reported time between tokens looks; 0 means 2 s.
	RecentWindow time.Duration

	// OnRescue is told of every stream that lost its engine, once it is decided
	// what becomes of it. It is called on the stream's goroutine, by several at
	// once, and must not block; nil: nobody.
	OnRescue func(Rescue)
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

// validate fills in the defaults and reports the first field that is wrong.
func (c Config) validate() (Config, *url.URL, error) {
	if c.Replica == "" {
		return c, nil, errors.New("front: Replica is empty; name the replica")
	}
	engine, err := url.Parse(c.Engine)
	if err != nil || engine.Scheme != "http" || engine.Host == "" {
		return c, nil, fmt.Errorf("front of %s: Engine %q must be a URL like http://127.0.0.1:8000", c.Replica, c.Engine)
	}
	if engine.Path == "" {
		engine.Path = "/" // what JoinPath needs to make rooted paths
	}
	if err := policies.NewFlow(c.Edges).Validate(); err != nil {
		return c, nil, fmt.Errorf("front of %s: Edges: %w", c.Replica, err)
	}
	if c.PeerScheme == "" {
		c.PeerScheme = "http"
	}
	if c.PeerScheme != "http" && c.PeerScheme != "https" {
		return c, nil, fmt.Errorf("front of %s: PeerScheme %q must be http or https", c.Replica, c.PeerScheme)
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return c, nil, fmt.Errorf("front of %s: TrustDomain: %w", c.Replica, err)
		}
	}
	if c.MaxBody < 0 {
		return c, nil, fmt.Errorf("front of %s: MaxBody %d must not be negative", c.Replica, c.MaxBody)
	}
	if c.MaxBody == 0 {
		c.MaxBody = defaultMaxBody
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{
		{"FlowTau", &c.FlowTau, time.Duration(flow.DefaultTau * float64(time.Second))},
		{"Recent", &c.RecentWindow, defaultRecent},
		{"BodyTimeout", &c.BodyTimeout, defaultBodyTimeout},
		{"IdleTimeout", &c.IdleTimeout, defaultIdleTimeout},
		{"HangTimeout", &c.HangTimeout, defaultHang},
		{"MoveTimeout", &c.MigrationTimeout, defaultMove},
		{"RescueTimeout", &c.RescueTimeout, defaultRescue},
		{"WriteTimeout", &c.WriteTimeout, defaultWriteTimeout},
		{"DrainTimeout", &c.DrainTimeout, defaultDrainTimeout},
		{"HealthEvery", &c.HealthInterval, defaultHealthEvery},
		{"HealthTimeout", &c.HealthTimeout, defaultHealth},
	} {
		if *d.value < 0 {
			return c, nil, fmt.Errorf("front of %s: %s %v must not be negative", c.Replica, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	if c.Listen == nil {
		c.Listen = net.Listen
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, engine, nil
}
