package transport_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// fake is a transport whose pulls take a while and then return err.
type fake struct {
	transport.Transport
	takes time.Duration
	err   error
}

func (f *fake) Open(context.Context, policies.ReplicaID, transport.Offer) (transport.Puller, error) {
	return fakePuller{f: f}, nil
}

type fakePuller struct {
	transport.Puller
	f *fake
}

func (p fakePuller) Pull(context.Context, transport.Plan) (transport.Stats, error) {
	time.Sleep(p.f.takes)
	return transport.Stats{}, p.f.err
}

// Pulls take the time that the link would need, one after the other, including the time for
// copying.
func TestEmulatedLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		link, under := transport.NewEmulatedLink(1000, func() int64 { return 100 }), &fake{}
		p := testkit.Must(link.Carry(under).Open(t.Context(), "r0", transport.Offer{}))
		pull := func(ctx context.Context, blocks int) (time.Duration, error) {
			start := time.Now()
			_, err := p.Pull(ctx, transport.Plan{Src: make([]uint32, blocks)})
			return time.Since(start).Round(time.Millisecond), err
		}
		check := func(what string, took time.Duration, err error, want time.Duration, wantErr error) {
			t.Helper()
			if took != want || !errors.Is(err, wantErr) {
				t.Errorf("%s: took %v, error %v; want %v, %v", what, took, err, want, wantErr)
			}
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { pull(t.Context(), 5) })
		}
		wg.Wait()
		check("3 times 500 bytes at 1,000 a second", time.Since(start), nil, 1500*time.Millisecond, nil)
		under.takes = 300 * time.Millisecond
		took, err := pull(t.Context(), 5)
		check("500 bytes", took, err, 500*time.Millisecond, nil)
		under.takes = time.Second
		took, err = pull(t.Context(), 5)
		check("500 bytes that are copied more slowly than by the link", took, err, time.Second, nil)
		under.takes, under.err = 0, &transport.CorruptError{}
		took, err = pull(t.Context(), 5)
		check("500 bytes with wrong checksums", took, err, 500*time.Millisecond, under.err)
		under.err = errors.New("broken")
		took, err = pull(t.Context(), 5)
		check("a pull that fails", took, err, 0, under.err)
		under.err = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		took, err = pull(ctx, 1<<20)
		check("100 MiB within a second", took, err, time.Second, context.DeadlineExceeded)
		took, err = pull(t.Context(), 5)
		check("500 bytes after those that were given up", took, err, 500*time.Millisecond, nil)
	})
}
