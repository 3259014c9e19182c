package shm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/migrator/internal/localsocket"
	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Transport is one engine's end. It is safe for concurrent use.
type Transport struct {
	config   Config
	book     ticket.Book
	address  atomic.Pointer[string] // the socket's path while the source serves
	mappings mappings
}

var _ transport.Transport = (*Transport)(nil)

// New returns a transport that serves once it runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	return &Transport{config: c}, nil
}

// Name returns "shm".
func (t *Transport) Name() string { return "shm" }

var errNoFile = fmt.Errorf("shm transport: %w: no shared memory; a GPU's is for cuda, verbs and tcp", transport.ErrUnsuited)

// Probe makes the directory, and looks at the engine's memory if it is there.
func (t *Transport) Probe(context.Context) error {
	if err := localsocket.Private(t.config.Dir); err != nil {
		return fmt.Errorf("shm transport: %w", err)
	}
	m, ok := t.config.Pool.Memory()
	if !ok || !m.Hold() {
		return nil
	}
	defer m.Release()
	if m.File == nil {
		return errNoFile
	}
	f, err := readOnly(m)
	if err != nil {
		return fmt.Errorf("shm transport: %w", err)
	}
	return f.Close()
}

// Reaches reports whether both ends are on the same node.
func (t *Transport) Reaches(from, to string) bool { return from == to && from != "" }

// Run serves until ctx ends, and drops mappings that nobody uses any more.
func (t *Transport) Run(ctx context.Context) error {
	s, err := localsocket.Listen(t.config.Dir, suffix, &t.book, welcome, t.config.Logger)
	if err != nil {
		return fmt.Errorf("shm transport: %w", err)
	}
	t.mappings.keep(true)
	t.book.Open()
	t.address.Store(&s.Path)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Serve(ctx) })
	g.Go(func() error {
		tick := time.NewTicker(idleMapping / 3)
		defer tick.Stop()
		for {
			select {
			case now := <-tick.C:
				t.mappings.drop(now.Add(-idleMapping))
			case <-ctx.Done():
				t.address.Store(nil)
				t.book.Close()
				t.mappings.keep(false)
				return nil
			}
		}
	})
	return g.Wait()
}

// Export makes an offer. See transport.Source.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) {
	m, ok := t.config.Pool.Memory()
	if !ok {
		return transport.Offer{}, errors.New("shm transport: the engine is away")
	}
	if m.File == nil {
		return transport.Offer{}, errNoFile
	}
	path := t.address.Load()
	if path == nil {
		return transport.Offer{}, errors.New("shm transport: the source does not run")
	}
	secret, err := t.book.Issue(g, m, time.Now())
	if err != nil {
		return transport.Offer{}, fmt.Errorf("shm transport: %w", err)
	}
	return transport.Offer{Transport: t.Name(), Address: *path, Ticket: secret}, nil
}

// Revoke ends the grants of a move. See transport.Source.
func (t *Transport) Revoke(move string) { t.book.Revoke(move) }
