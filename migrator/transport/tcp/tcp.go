package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Transport is one engine's end. It is safe for concurrent use.
type Transport struct {
	config  Config
	book    ticket.Book
	address atomic.Pointer[string] // the source's, while it serves
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that listens once it runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	return &Transport{config: c}, nil
}

// Name returns "tcp".
func (t *Transport) Name() string { return "tcp" }

// Probe returns nil, unless the engine's memory is on a device that has failed: what
// else can go wrong depends on the peer.
func (t *Transport) Probe(context.Context) error {
	if err := transport.Usable(t.config.Pool); err != nil {
		return fmt.Errorf("tcp transport: %w", err)
	}
	return nil
}

// Reaches reports whether the nodes are one, or TLS may carry blocks between
// them.
func (t *Transport) Reaches(from, to string) bool { return from == to || t.config.TLS != nil }

// Run listens and serves until ctx ends.
func (t *Transport) Run(ctx context.Context) error {
	lc := net.ListenConfig{Control: congestion}
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
	s := &server{config: t.config, book: &t.book, listener: l}
	t.book.Open()
	t.address.Store(&address)
	s.serve(ctx)
	t.address.Store(nil)
	t.book.Close()
	return nil
}

// Export makes an offer. See transport.Source.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) {
	m, ok := t.config.Pool.Memory()
	if !ok {
		return transport.Offer{}, errors.New("tcp transport: the engine is away")
	}
	address := t.address.Load()
	if address == nil {
		return transport.Offer{}, errors.New("tcp transport: the source does not run")
	}
	secret, err := t.book.Issue(g, m, time.Now())
	if err != nil {
		return transport.Offer{}, fmt.Errorf("tcp transport: %w", err)
	}
	return transport.Offer{Transport: t.Name(), Address: *address, Ticket: secret}, nil
}

// Revoke ends the grants of a move. See transport.Source.
func (t *Transport) Revoke(move string) { t.book.Revoke(move) }
