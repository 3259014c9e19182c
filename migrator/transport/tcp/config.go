package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

const (
	stallTimeout = 5 * time.Second // without a byte while some are expected
	maxAsk       = 2048            // blocks of one ask
	askBytes     = 8 << 20         // that one ask requests, about
	packBytes    = 1 << 20         // of a device's blocks in host memory at a time, about
	writeBytes   = 16 << 10        // buffered by the source: a record of TLS; the rest of a larger part is not copied
	pieceBytes   = 1 << 20         // of a large part, passed to the kernel by one write
	bufferBytes  = 16 << 10        // buffered by the receiver; larger parts are read to their places
	readBytes    = 256 << 10       // read at a time, to stay in the core's cache
)

// Config configures a Transport.
type Config struct {
	// Listen is the address of the source, IP:port; "" means 127.0.0.1:0, a free port
	// of loopback. Other addresses than loopback require TLS.
	Listen string
	// Advertise is the host at which peers reach the source; "" means the host of
	// Listen, which must not be a wildcard then.
	Advertise string
	// TLS configures the source's side. It must require client certificates: a receiver
	// without one is rejected. nil means plain text, which is allowed on loopback only.
	TLS *tls.Config
	// ClientTLS returns the receiver's side for a source at an address, host:port. The
	// source is "" if it is not known. Required with TLS, and otherwise nil.
	ClientTLS func(source policies.ReplicaID, address string) *tls.Config
	// TrustDomain binds tickets to certificates: the receiver that presents a ticket
	// must have the certificate of its migrator (internal/identity). "" binds nothing.
	// It requires TLS.
	TrustDomain string
	// Pool has the local engine's memory. Required.
	Pool transport.Pool
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	if c.Pool == nil {
		return c, errors.New("tcp transport: Pool is required")
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	address, err := netip.ParseAddrPort(c.Listen)
	if err != nil {
		return c, fmt.Errorf("tcp transport: Listen %q must be IP:port", c.Listen)
	}
	if (c.TLS == nil) != (c.ClientTLS == nil) {
		return c, errors.New("tcp transport: set both TLS and ClientTLS, or neither")
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return c, fmt.Errorf("tcp transport: TrustDomain: %w", err)
		}
		if c.TLS == nil {
			return c, errors.New("tcp transport: TrustDomain requires TLS, since plain text has no certificates")
		}
	}
	if c.TLS == nil && !address.Addr().Unmap().IsLoopback() {
		return c, fmt.Errorf("tcp transport: Listen %s is not a loopback address: set TLS and ClientTLS, or listen on loopback", c.Listen)
	}
	if c.Advertise == "" {
		if address.Addr().IsUnspecified() {
			return c, fmt.Errorf("tcp transport: Listen %s is a wildcard address: set Advertise to the host at which peers reach it", c.Listen)
		}
		c.Advertise = address.Addr().String()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
