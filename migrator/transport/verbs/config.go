package verbs

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/cascadeinfer/cascade/migrator/device/verbs"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// The bounds of every boundary.
const (
	maxPoolReads        = 16                    // how often a move may have a whole pool packed
	writeGrace          = time.Second           // for what sessions still write when Run ends
	packTimeout         = 15 * time.Second      // for a source's GPU to pack a slot, which has 10 s itself
	pollInterval        = 20 * time.Millisecond // between two looks at what is under way meanwhile
	reopenInterval      = 10 * time.Second      // between two attempts to open the device
	closeUnusedInterval = time.Second           // between two looks for registrations that nobody needs

	// What a processor does for a plan is by READs, batches and completions, so all
	// are as large as the end of a pull bears, which waits for the last batch's check:
	// 4 MiB are summed in a third of a millisecond.
	batchBytes = 4 << 20 // that one batch of READs asks for, about
	readBytes  = 4 << 20 // and one READ, at most
	depth      = 4       // batches under way
	maxPieces  = 16      // of local memory that one READ fills

	// A packet is sent again after 4.096 µs · 2^11 = 8.4 ms, 6 times: a peer that is
	// gone is noticed after 59 ms, and after four times as much with NICs that round
	// up as far as the standard allows. One that packs is noticed so while a READ is under
	// way, and by its stream or packTimeout else. Soft-RoCE takes 7 times for always.
	timeout = 11
	retries = 6
	hops    = 64
)

// Config is what a Transport needs.
type Config struct {
	// Library is the loaded library. Required.
	Library *verbs.Library
	// Device names the RDMA device; nil, or "", is the first that has an active port.
	// It is asked when a device is opened, and again while Run runs: for another
	// answer the device is changed, and moves under way end on the one before. It
	// must not block.
	Device func() string
	// Port is the device's port, from 1; 0 is its first that is active.
	Port int
	// GID is the address of the port to use where it has several, as its interface has
	// it (RoCE v2 before v1); the zero Addr is the first that routers know, of IPv4
	// before IPv6. A source answers from one of the kind by which it is asked.
	GID netip.Addr
	// Bounce reports whether a device's pool is so far from the NIC that its blocks
	// should go by way of the host, though the NIC may reach it; nil is never. It must
	// not block.
	Bounce func() bool
	// TrafficClass and ServiceLevel mark packets for the fabric's queues: on RoCE v2
	// the byte of IP that has the DSCP, and the priority of a tagged frame, up to 7; on
	// InfiniBand the service level, up to 15. 0 is what fabrics do by themselves.
	TrafficClass, ServiceLevel uint8
	// Address is where peers reach Handler, host:port; "" while that is not known.
	// Required. It must not block.
	Address func() string
	// Credentials secures the connection to a source's migrator, whose name is ""
	// where it is not known, at an address, host:port. nil means plain text, which
	// stays on loopback: then the transport reaches its own node alone.
	Credentials func(source policies.ReplicaID, address string) credentials.TransportCredentials
	// TrustDomain binds tickets to certificates: who presents one must show that of
	// the migrator of the ticket's receiver (policies/identity). "" binds nothing.
	// The server that Handler is given to must demand certificates then.
	TrustDomain string
	// Pool has the own engine's memory. Required.
	Pool transport.Pool
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	if c.Pool == nil || c.Library == nil || c.Address == nil {
		return c, errors.New("verbs transport: Pool, Library or Address is missing")
	}
	if c.Port < 0 || c.Port > 255 || c.ServiceLevel > 15 || c.Device == nil && (c.Port != 0 || c.GID.IsValid()) {
		return c, fmt.Errorf("verbs transport: port %d, address %v and service level %d: want a port of a named device, and a level up to 15", c.Port, c.GID, c.ServiceLevel)
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return c, fmt.Errorf("verbs transport: TrustDomain: %w", err)
		}
		if c.Credentials == nil {
			return c, errors.New("verbs transport: TrustDomain needs Credentials: in plain text nobody shows a certificate")
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
