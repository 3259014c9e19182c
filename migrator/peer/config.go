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

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
	xds "github.com/cascadeinfer/cascade/xds/api"
)

// MaxEnvelope is the largest envelope in bytes. A round of 128K tokens fits: at
// most 5 bytes for each id and for each of 8,192 blocks, and as much for each
// sum of up to 180 regions a block. A larger one is not sent.
const MaxEnvelope = 8 << 20

// The versions that this build speaks.
const (
	MarketVersion = 1
	TransferMin   = 1
	TransferMax   = 1
)

// The defaults and bounds.
const (
	defaultInterval      = 500 * time.Millisecond
	defaultSilence       = 3 * time.Second
	defaultIdle          = 30 * time.Second
	defaultQueue         = 1024
	queueBytes           = 8 * MaxEnvelope // bytes that may wait for one peer
	minReconnectDelay    = 50 * time.Millisecond
	maxReconnectDelay    = time.Second
	dialTimeout          = 2 * time.Second
	helloTimeout         = 5 * time.Second // for the first envelope of a stream
	shutdownWriteTimeout = time.Second     // for what streams of peers still write when Run ends
	maxIncoming          = 1 << 14         // streams of peers
	refusalsUntilGone    = 2               // refused connections that mean "gone"
	keepaliveEvery       = 10 * time.Second
	keepaliveAnswer      = 5 * time.Second
	maxNameBytes         = 256         // bytes of the name in a Hello that is compared with a certificate
	identityLogInterval  = time.Minute // between two lines about streams that lie
)

// Config is what a Network needs.
type Config struct {
	// Self is the own replica. Required.
	Self policies.ReplicaID
	// Handle takes what arrives. It is called on the goroutine of the peer's
	// stream, for different peers at once, and must not block. The envelope is
	// the callee's. Required.
	Handle func(from policies.ReplicaID, e *api.Envelope)
	// PeerGone is told when a watched peer is gone. It is always called by the same
	// goroutine and must not block. nil: nobody is told.
	PeerGone func(policies.ReplicaID)
	// PeerBack is told when anything comes from a peer again that Gone was told of, at
	// the latest with its first Hello: at once when its process was replaced. It is
	// called as Gone is. nil: nobody is told.
	PeerBack func(policies.ReplicaID)
	// Alive reports whether there are other signs of life of a peer, not older
	// than Silence: its requests' tokens, for instance. It is asked before a
	// silent peer is called gone, under a lock, and must neither block nor call
	// back. nil: there are none.
	Alive func(policies.ReplicaID) bool
	// Incarnation tells the processes of one replica apart: it grows with every
	// start. 0 means the time of New in microseconds.
	Incarnation uint64
	// Site says where the own KV cache is, for the Hellos of the streams that begin
	// now. It must not block, and what it returns must not be changed. nil, or what
	// returns nil: nothing is said.
	Site func() *xds.Site
	// Credentials secures the connection to a peer at an address, and with
	// identities makes sure that the peer is there; nil means plaintext. Whether
	// plaintext is allowed is the daemon's to decide.
	Credentials func(peer policies.ReplicaID, address string) credentials.TransportCredentials
	// TrustDomain binds the name that a stream's Hello claims to the certificate
	// with which it came: it must be that of the replica's migrator there
	// (policies/identity). The server that Handler is given to must demand
	// certificates and verify their chains. "" binds nothing.
	TrustDomain string
	// Dial connects to an address; nil means TCP.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// HeartbeatInterval is the time between two Beats, Silence how long a watched peer
	// may say nothing: several intervals. An envelope that has waited for
	// Silence is not sent any more. 0 means 500 ms and 3 s.
	HeartbeatInterval, PeerTimeout time.Duration
	// IdleTimeout is after how long without an envelope a stream is closed. 0 means
	// 30 s.
	IdleTimeout time.Duration
	// QueueSize is how many envelopes may wait for one peer. 0 means 1,024.
	QueueSize int
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	switch {
	case c.Self == "":
		return c, errors.New("peer: Self must name the own replica")
	case c.Handle == nil:
		return c, fmt.Errorf("peer network of %s: Handle is nil; say who takes what arrives", c.Self)
	case c.QueueSize < 0:
		return c, fmt.Errorf("peer network of %s: Queue %d must not be negative", c.Self, c.QueueSize)
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
	}{{"Interval", &c.HeartbeatInterval, defaultInterval}, {"Silence", &c.PeerTimeout, defaultSilence}, {"Idle", &c.IdleTimeout, defaultIdle}} {
		if *d.value < 0 {
			return c, fmt.Errorf("peer network of %s: %s %v must not be negative", c.Self, d.name, *d.value)
		}
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	if c.PeerTimeout < c.HeartbeatInterval {
		return c, fmt.Errorf("peer network of %s: Silence %v is below the Interval %v: every peer would be gone", c.Self, c.PeerTimeout, c.HeartbeatInterval)
	}
	if c.QueueSize == 0 {
		c.QueueSize = defaultQueue
	}
	if c.Incarnation == 0 {
		c.Incarnation = uint64(time.Now().UnixMicro())
	}
	if c.Site == nil {
		c.Site = func() *xds.Site { return nil }
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
