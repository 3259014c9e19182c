package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// MaxEnvelope is the maximum size of an envelope in bytes; larger ones are not sent. It
// fits a round of 128K tokens: at most 5 bytes for each id and each of 8,192 blocks, and
// as much for each checksum of up to 180 regions per block.
const MaxEnvelope = 8 << 20

// Versions of the transfer protocol that this build supports.
const (
	TransferMin = 1
	TransferMax = 1
)

// Defaults and limits.
const (
	defaultInterval      = 500 * time.Millisecond
	defaultSilence       = 3 * time.Second
	defaultIdle          = 30 * time.Second
	defaultQueue         = 1024
	queueBytes           = 8 * MaxEnvelope // maximum queued for one peer
	minReconnectDelay    = 50 * time.Millisecond
	maxReconnectDelay    = time.Second
	dialTimeout          = 2 * time.Second
	helloTimeout         = 5 * time.Second // for the first envelope of a stream
	shutdownWriteTimeout = time.Second     // for pending writes to streams of peers when Run ends
	maxIncoming          = 1 << 14         // streams of peers
	refusalsUntilGone    = 2               // consecutive refused connections after which a peer is gone
	keepaliveEvery       = 10 * time.Second
	keepaliveAnswer      = 5 * time.Second
	maxFetches           = 256 // calls of FetchKV and FetchPrefix that are served at a time
	maxNameBytes         = 256 // of the name in a Hello that is compared with a certificate
)

// Config configures a Network.
type Config struct {
	// Self is this replica. Required.
	Self policies.ReplicaID
	// Handle receives envelopes and owns them. It is called on the goroutine of the
	// peer's stream, for different peers concurrently, and must not block. Required.
	Handle func(from policies.ReplicaID, e *api.Envelope)
	// PeerGone is called when a watched peer is gone, always on the same goroutine. It
	// must not block. It may be nil.
	PeerGone func(policies.ReplicaID)
	// PeerBack is called when a peer for which PeerGone was called sends anything again,
	// at the latest its first Hello; at once if its process was replaced. It is called
	// like PeerGone. It may be nil.
	PeerBack func(policies.ReplicaID)
	// Alive reports whether there is other evidence, not older than PeerTimeout, that a
	// peer is alive: tokens of its requests, for instance. It is called under a lock
	// before a silent peer is reported gone, and must neither block nor call back. It
	// may be nil.
	Alive func(policies.ReplicaID) bool
	// Incarnation identifies the process of a replica: it grows with every start. 0
	// means the time of New in microseconds.
	Incarnation uint64
	// Topology returns the location of this replica's KV cache for the Hello of a new stream,
	// or nil if it is unknown. It must not block, and its result must not be changed. It
	// may be nil.
	Topology func() *xds.Topology
	// ServeFetch answers a call of FetchKV of a peer, whose identity has been checked. answer sends
	// the one answer; the call lasts until ServeFetch returns, which it does when ctx ends. nil
	// rejects all calls.
	ServeFetch func(ctx context.Context, from policies.ReplicaID, q *api.FetchKVRequest, answer func(*api.FetchKVAnswer) error) error
	// ServePrefix is ServeFetch for FetchPrefix. An error that is a gRPC status keeps its code.
	ServePrefix func(ctx context.Context, from policies.ReplicaID, q *api.FetchPrefixRequest, answer func(*api.FetchPrefixAnswer) error) error
	// Credentials secures the connection to a peer at an address and, with identities,
	// authenticates the peer; nil means plaintext. The caller decides whether plaintext
	// is allowed.
	Credentials func(peer policies.ReplicaID, address string) credentials.TransportCredentials
	// TrustDomain, unless "", requires that the certificate of a stream is that of the
	// migrator of the replica that the stream's Hello names (internal/identity). The
	// server that runs Handler must then require certificates and verify their chains.
	TrustDomain string
	// Dial connects to an address; nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// HeartbeatInterval is the time between two Heartbeats, PeerTimeout how long a
	// watched peer may be silent: several intervals. Envelopes that have been queued for
	// PeerTimeout are dropped. 0 means 500 ms and 3 s.
	HeartbeatInterval, PeerTimeout time.Duration
	// IdleTimeout is the time without an envelope after which a stream is closed. 0
	// means 30 s.
	IdleTimeout time.Duration
	// QueueSize is the number of envelopes that may be queued for one peer. 0 means 1,024.
	QueueSize int
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Self == "":
		return c, errors.New("peer: Self must name this replica")
	case c.Handle == nil:
		return c, fmt.Errorf("peer network of %s: Handle is required", c.Self)
	case c.QueueSize < 0:
		return c, fmt.Errorf("peer network of %s: QueueSize %d must not be negative", c.Self, c.QueueSize)
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return c, fmt.Errorf("peer network of %s: TrustDomain: %w", c.Self, err)
		}
	}
	for _, d := range [...]struct {
		name  string
		value *time.Duration
		or    time.Duration
	}{{"HeartbeatInterval", &c.HeartbeatInterval, defaultInterval}, {"PeerTimeout", &c.PeerTimeout, defaultSilence}, {"IdleTimeout", &c.IdleTimeout, defaultIdle}} {
		if *d.value < 0 {
			return c, fmt.Errorf("peer network of %s: %s %v must not be negative", c.Self, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	if c.PeerTimeout < c.HeartbeatInterval {
		return c, fmt.Errorf("peer network of %s: PeerTimeout %v must be at least HeartbeatInterval %v", c.Self, c.PeerTimeout, c.HeartbeatInterval)
	}
	if c.QueueSize == 0 {
		c.QueueSize = defaultQueue
	}
	if c.Incarnation == 0 {
		c.Incarnation = uint64(time.Now().UnixMicro())
	}
	if c.Topology == nil {
		c.Topology = func() *xds.Topology { return nil }
	}
	if c.PeerGone == nil {
		c.PeerGone = func(policies.ReplicaID) {}
	}
	if c.PeerBack == nil {
		c.PeerBack = func(policies.ReplicaID) {}
	}
	if c.Alive == nil {
		c.Alive = func(policies.ReplicaID) bool { return false }
	}
	if c.Credentials == nil {
		c.Credentials = func(policies.ReplicaID, string) credentials.TransportCredentials { return insecure.NewCredentials() }
	}
	if c.Dial == nil {
		dialer := &net.Dialer{Timeout: dialTimeout}
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
