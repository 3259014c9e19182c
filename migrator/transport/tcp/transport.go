package tcp

import (
	"context"
	"fmt"
	"net"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/lease"
)

// Transport carries blocks to and from the pool of one engine. It is safe for concurrent
// use.
type Transport struct {
	lease.Source
	config Config
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that listens while Run runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	return &Transport{
		Source: lease.Source{Transport: "tcp", Pool: c.Pool, TrustDomain: c.TrustDomain, Logger: c.Logger},
		config: c,
	}, nil
}

// Probe fails if the engine's memory is on a device that cannot be used. Everything else
// that may fail depends on the peer.
func (t *Transport) Probe(context.Context) error {
	if err := transport.CheckDevice(t.config.Pool); err != nil {
		return fmt.Errorf("tcp transport: %w", err)
	}
	return nil
}

// CanReach reports whether both ends are on the same host, or TLS is configured to carry
// blocks between hosts.
func (t *Transport) CanReach(from, to string) bool { return from == to || t.config.TLS != nil }

// Run listens and serves until ctx ends.
func (t *Transport) Run(ctx context.Context) error {
	lc := net.ListenConfig{Control: setCongestionControl}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", t.config.Listen)
	if err != nil {
		return fmt.Errorf("tcp transport: %w", err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		l.Close()
		return fmt.Errorf("tcp transport: %w", err)
	}
	address := net.JoinHostPort(t.config.Advertise, port)
	t.Start(func() string { return address })
	lease.Serve(ctx, l, t.Name(), t.config.Logger, t.serveReceiver)
	t.Stop()
	return nil
}
