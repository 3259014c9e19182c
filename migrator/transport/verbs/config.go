package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	maxPoolReads        = 16                    // multiples of the pool's size that one pull may ask to be packed
	writeGrace          = time.Second           // for writes of sessions when Run ends
	packTimeout         = 15 * time.Second      // for a source's GPU to pack a buffer, which has 10 s itself
	pollInterval        = 20 * time.Millisecond // between two polls of the completion queue meanwhile
	reopenInterval      = 10 * time.Second      // between two attempts to open the device
	closeUnusedInterval = time.Second           // between two scans for unused registrations

	// A processor has work for each READ, batch and completion, so all are as large as
	// the end of a pull allows, which waits for the verification of the last batch: 4 MiB
	// are summed in a third of a millisecond.
	batchBytes = 4 << 20 // of one batch of READs, about
	readBytes  = 4 << 20 // of one READ, at most
	depth      = 4       // batches in flight
	maxPieces  = 16      // of local memory that one READ fills

	// A packet is sent again after 4.096 µs · 2^11 = 8.4 ms, 6 times: a lost peer is
	// noticed after 59 ms, and after four times as much with NICs that round up as far as
	// the standard allows. A source that packs blocks is noticed like this only while a
	// READ is in flight, and otherwise by its stream or packTimeout. Soft-RoCE takes 7
	// retries as infinite.
	timeout = 11
	retries = 6
	hops    = 64
)

// Config configures a Transport.
type Config struct {
	// Library is the loaded library. Required.
	Library *verbs.Library
	// Device returns the name of the RDMA device; nil, or "", means the first device with
	// an active port. It is called when a device is opened, and repeatedly while Run
	// runs: if the name changes, the transport opens the other device, and pulls in
	// progress end on the previous one. It must not block.
	Device func() string
	// Port is the device's port, from 1; 0 means its first active port.
	Port int
	// GID is the address of the port to use if it has several, as its interface has it
	// (RoCE v2 before v1); the zero Addr means the first routable one, IPv4 before IPv6.
	// A source answers from an address of the kind that the receiver uses.
	GID netip.Addr
	// Bounce reports whether a device's pool is so far from the NIC that its blocks
	// should go through host memory even if the NIC can reach it; nil means never. It
	// must not block.
	Bounce func() bool
	// TrafficClass and ServiceLevel mark packets for the fabric's queues: on RoCE v2 the
	// IP byte that contains the DSCP, and the priority of a tagged frame, up to 7; on
	// InfiniBand the service level, up to 15. 0 is the fabric's default.
	TrafficClass, ServiceLevel uint8
	// Address returns the address of Handler for peers, host:port; "" while it is not
	// known. Required. It must not block.
	Address func() string
	// Credentials secures the connection to the migrator of a source, "" if it is not
	// known, at an address, host:port. nil means plain text, which is allowed on loopback
	// only: the transport reaches its own host only.
	Credentials func(source policies.ReplicaID, address string) credentials.TransportCredentials
	// TrustDomain binds tickets to certificates: the receiver that presents a ticket must
	// have the certificate of its migrator (internal/identity). "" binds nothing. The
	// server of Handler must require client certificates then.
	TrustDomain string
	// Pool has the local engine's memory. Required.
	Pool transport.Pool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	if c.Pool == nil || c.Library == nil || c.Address == nil {
		return c, errors.New("verbs transport: Pool, Library and Address are required")
	}
	if c.Port < 0 || c.Port > 255 || c.ServiceLevel > 15 || c.Device == nil && (c.Port != 0 || c.GID.IsValid()) {
		return c, fmt.Errorf("verbs transport: port %d, address %v, service level %d: Port and GID require Device; the service level is at most 15", c.Port, c.GID, c.ServiceLevel)
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return c, fmt.Errorf("verbs transport: TrustDomain: %w", err)
		}
		if c.Credentials == nil {
			return c, errors.New("verbs transport: TrustDomain requires Credentials, since plain text has no certificates")
		}
	}
	if c.Bounce == nil {
		c.Bounce = func() bool { return false }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
