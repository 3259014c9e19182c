package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/migrator/internal/localsocket"
	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// Transport is one engine's end. It is safe for concurrent use.
type Transport struct {
	config  Config
	book    ticket.Book
	address atomic.Pointer[string] // the socket's path while the source serves
	gpu     atomic.Pointer[GPU]    // that the engine's pool was on when it was last used
}

var (
	_ transport.Transport = (*Transport)(nil)
	_ transport.Device    = (*Memory)(nil)
)

// New returns a transport that serves once it runs.
func New(c Config) (*Transport, error) {
	c, err := c.validate()
	if err != nil {
		return nil, err
	}
	return &Transport{config: c}, nil
}

// Name returns "cuda".
func (t *Transport) Name() string { return "cuda" }

// Probe makes the directory, and has the GPU read some of the engine's memory. While
// the engine is away it fails.
func (t *Transport) Probe(context.Context) error {
	err := localsocket.Private(t.config.Dir)
	if err == nil {
		err = t.probe()
	}
	if err != nil {
		return fmt.Errorf("cuda transport: %w", err)
	}
	return nil
}

func (t *Transport) probe() error {
	m, err := transport.HoldDevice(t.config.Pool)
	if err != nil {
		return err
	}
	defer m.Release()
	own, err := t.own(m)
	if err != nil {
		return err
	}
	return own.Usable()
}

// own is the device memory of a pool.
func (t *Transport) own(m *transport.Memory) (*Memory, error) {
	d, ok := m.Device.(*Memory)
	if !ok {
		return nil, fmt.Errorf("%w: not a GPU's; the processor's is for shm, verbs and tcp", transport.ErrUnsuited)
	}
	if was := t.gpu.Swap(d.gpu); was != nil && was != d.gpu { // another engine
		was.drop(time.Now())
	}
	return d, nil
}

// Reaches reports whether both ends are on the same node. Whether their GPUs reach
// each other is known when they are.
func (t *Transport) Reaches(from, to string) bool { return from == to && from != "" }

// Run serves until ctx ends, and drops mappings that nobody uses any more.
func (t *Transport) Run(ctx context.Context) error {
	s, err := localsocket.Listen(t.config.Dir, suffix, &t.book, t.welcome, t.config.Logger)
	if err != nil {
		return fmt.Errorf("cuda transport: %w", err)
	}
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
				t.drop(now.Add(-idleMapping))
			case <-ctx.Done():
				t.address.Store(nil)
				t.book.Close()
				t.drop(time.Now())
				return nil
			}
		}
	})
	return g.Wait()
}

// drop unmaps what nobody has used since before.
func (t *Transport) drop(before time.Time) {
	if g := t.gpu.Load(); g != nil {
		g.drop(before)
	}
}

// welcome hands on how a lease's memory is reached.
func (t *Transport) welcome(lease *ticket.Lease) ([]byte, *os.File, error) {
	m, err := t.own(lease.Memory)
	if err != nil {
		return nil, nil, err
	}
	f, err := m.Descriptor()
	return m.handle.Append(nil), f, err
}

// Export makes an offer. See transport.Source.
func (t *Transport) Export(g transport.Grant) (transport.Offer, error) {
	m, ok := t.config.Pool.Memory()
	if !ok {
		return transport.Offer{}, errors.New("cuda transport: the engine is away")
	}
	if _, err := t.own(m); err != nil {
		return transport.Offer{}, fmt.Errorf("cuda transport: %w", err)
	}
	path := t.address.Load()
	if path == nil {
		return transport.Offer{}, errors.New("cuda transport: the source does not run")
	}
	secret, err := t.book.Issue(g, m, time.Now())
	if err != nil {
		return transport.Offer{}, fmt.Errorf("cuda transport: %w", err)
	}
	return transport.Offer{Transport: t.Name(), Address: *path, Ticket: secret}, nil
}

// Revoke ends the grants of a move. See transport.Source.
func (t *Transport) Revoke(move string) { t.book.Revoke(move) }
