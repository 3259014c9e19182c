package tcp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/identity"
)

// The bounds of every boundary.
const (
	helloTimeout = 5 * time.Second // to connect and to present a ticket, each
	stallTimeout = 5 * time.Second // without a byte while some are due
	maxSessions  = 256             // open moves of one source
	maxAsk       = 2048            // blocks of one list
	askBytes     = 8 << 20         // that one list asks for, about
	packBytes    = 1 << 20         // of a device's blocks that are in the host's memory at a time, about
	noteEvery    = time.Minute     // between two lines about receivers that lie
	writeBytes   = 1 << 20         // handed to the kernel at a time
	writeParts   = 1024            // regions in one such write; the kernel takes as many
	gatherBytes  = 128 << 10       // encrypted at a time, a multiple of TLS's records
	readBytes    = 256 << 10       // taken from the kernel at a time: they stay in the core's cache
	readParts    = 256             // regions in one such read
)

// Config is what a Transport needs.
type Config struct {
	// Listen is the source's address, IP:port; "" means 127.0.0.1:0, a free port
	// of loopback. Off loopback TLS is required.
	Listen string
	// Advertise is the host that peers reach the source by; "" means Listen's,
	// which must not be a wildcard then.
	Advertise string
	// TLS is the source's side. It must demand certificates: who shows none is
	// turned away. nil means plain text, which only loopback may carry.
	TLS *tls.Config
	// ClientTLS returns the receiver's side for a source, whose name is "" where
	// it is not known, at an address, host:port. Required with TLS, and otherwise
	// nil.
	ClientTLS func(source policies.ReplicaID, address string) *tls.Config
	// TrustDomain binds tickets to certificates: who presents one must show that
	// of the migrator of the ticket's receiver (policies/identity). "" binds
	// nothing. It needs TLS.
	TrustDomain string
	// Pool has the own engine's memory. Required.
	Pool transport.Pool
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

func (c Config) validate() (Config, error) {
	if c.Pool == nil {
		return c, errors.New("tcp transport: Pool is missing")
	}
	if c.Listen == "" {
		c.Listen = "127.0.0.1:0"
	}
	address, err := netip.ParseAddrPort(c.Listen)
	if err != nil {
		return c, fmt.Errorf("tcp transport: Listen %q must be IP:port", c.Listen)
	}
	if (c.TLS == nil) != (c.ClientTLS == nil) {
		return c, errors.New("tcp transport: TLS and ClientTLS go together: give both or none")
	}
	if c.TrustDomain != "" {
		if err := identity.CheckTrustDomain(c.TrustDomain); err != nil {
			return c, fmt.Errorf("tcp transport: TrustDomain: %w", err)
		}
		if c.TLS == nil {
			return c, errors.New("tcp transport: TrustDomain needs TLS: in plain text nobody shows a certificate")
		}
	}
	if c.TLS == nil && !address.Addr().Unmap().IsLoopback() {
		return c, fmt.Errorf("tcp transport: Listen %s is not loopback: give TLS and ClientTLS, or an address of loopback", c.Listen)
	}
	if c.Advertise == "" {
		if address.Addr().IsUnspecified() {
			return c, fmt.Errorf("tcp transport: Listen %s is every address: name the host that peers reach it by in Advertise", c.Listen)
		}
		c.Advertise = address.Addr().String()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// loopback says why plain text must not go to an address.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return errors.New("it is not loopback, and this side has no TLS")
	}
	return nil
}
