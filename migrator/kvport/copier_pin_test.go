package kvport

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// slowEngine is an engine that makes a pin when it is let go, whether or not the call has been cancelled by then, as
// an engine behind a connection does.
type slowEngine struct {
	*engine
	pinning chan struct{} // gets a value for each call
	letGo   chan struct{}
}

func (e *slowEngine) PinPrefix(ctx context.Context, id string, p Prefix, reserve bool) (PinnedPrefix, error) {
	type result struct {
		pinned PinnedPrefix
		err    error
	}
	done := make(chan result, 1)
	go func() {
		<-e.letGo
		pinned, err := e.engine.PinPrefix(context.WithoutCancel(ctx), id, p, reserve)
		done <- result{pinned, err}
	}()
	e.pinning <- struct{}{}
	select {
	case r := <-done:
		return r.pinned, r.err
	case <-ctx.Done():
		return PinnedPrefix{}, ctx.Err()
	}
}

// A request that ends while its prefix is pinned, at the own engine and at the holder's, leaves nothing pinned: the
// release comes after the pin.
func TestReleaseFollowsPin(t *testing.T) {
	p := prefix(24, 1)
	for _, at := range []string{"the own engine", "the holder's engine"} {
		var slow *slowEngine
		w := start(t, func(w *world, a, b *CopierConfig) {
			slow = &slowEngine{w.b, make(chan struct{}, 1), make(chan struct{})}
			if b.Engine = slow; at == "the holder's engine" {
				slow.engine = w.a
				a.Engine, b.Engine = slow, w.b
			}
		})
		w.a.compute(p)
		released := make(chan struct{}, 8)
		slow.gate = func(call string) error {
			if call == "release" {
				released <- struct{}{}
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { _, err := w.puller.Pull(ctx, "a", p); ended <- err }()
		<-slow.pinning
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", at, err)
		}
		select {
		case <-released:
			t.Errorf("%s: the release does not wait for the pin", at)
		case <-time.After(20 * time.Millisecond):
		}
		close(slow.letGo)
		<-released
		w.waitUnpinned(t)
		if s := w.holder.Served(); s.Prefixes > 0 || at == "the holder's engine" && s.Refused != 1 {
			t.Errorf("%s: %+v", at, s)
		}
	}
}

// A pin that the engine makes after its deadline is released, and an engine that refuses releases is logged once, not
// with each try.
func TestLatePin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowEngine{newEngine(), make(chan struct{}, 1), make(chan struct{})}
		fails := 3
		slow.gate = func(call string) error {
			if call == "release" && fails > 0 {
				fails--
				return refused
			}
			return nil
		}
		var log bytes.Buffer
		c := testkit.Must(NewCopier(CopierConfig{Engine: slow, Network: &world{}, Paths: transport.NewPaths(transport.PathsConfig{Self: "x"}), Logger: slog.New(slog.NewTextHandler(&log, nil))}))
		ctx, stop := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { c.Run(ctx) })
		synctest.Wait()
		if _, err := c.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Second) // the first release has been answered
		close(slow.letGo)
		synctest.Wait()
		if slow.pinned() == 0 {
			t.Fatal("the late pin was not made")
		}
		time.Sleep(engineTimeout)
		if slow.pinned() != 0 || slow.abandoned != 0 {
			t.Errorf("%d references and reservations are left; %d sessions abandoned", slow.pinned(), slow.abandoned)
		}
		stop()
		all.Wait()
		if n := strings.Count(log.String(), "level=WARN"); n != 1 || strings.Count(log.String(), "after retries") != 1 {
			t.Errorf("%s", log.String())
		}
	})
}

// While the own engine does not answer a release, the holder's blocks are free.
func TestHolderIsFreedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.a.compute(prefix(24, 1))
		w.afterPull = func(context.Context) error { return errors.New("no link") }
		hangs := make(chan struct{})
		w.b.gate = func(call string) error {
			if call == "release" {
				<-hangs
			}
			return nil
		}
		if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); err == nil {
			t.Error("no error")
		}
		synctest.Wait()
		if a, b := w.a.pinned(), w.b.pinned(); a > 0 || b == 0 {
			t.Errorf("%d references and reservations at the holder's engine, %d at the own one, which hangs", a, b)
		}
		close(hangs)
	})
}

// A release is tried again while the engine refuses it, less and less often, and then its session ends. An engine that has
// no such reservation, or is away, need not release it.
func TestRelease(t *testing.T) {
	for err, want := range map[error]struct{ calls, abandoned int }{
		refused:        {20, 1}, // after 0, 0.1, 0.3, … 3.1 s, and then every two seconds
		ErrNotFound:    {1, 0},
		ErrUnavailable: {1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, calls := newEngine(), 0
			e.gate = func(string) error { calls++; return err }
			c := testkit.Must(NewCopier(CopierConfig{Engine: e, Network: &world{}, Paths: transport.NewPaths(transport.PathsConfig{Self: "x"})}))
			begun := time.Now()
			c.release(t.Context(), "x", false)
			if took := time.Since(begun); calls != want.calls || e.abandoned != want.abandoned || took > insistTimeout+maxInsistRetry {
				t.Errorf("%v: %d calls, %d sessions abandoned after %v; want %d, %d", err, calls, e.abandoned, took, want.calls, want.abandoned)
			}
		})
	}
}

// A peer whose prefix is not pinned in time gets its answer at once, not when the late pin has been released.
func TestLatePinForPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowEngine{newEngine(), make(chan struct{}, 1), make(chan struct{})}
		c := testkit.Must(NewCopier(CopierConfig{Engine: slow, Network: &world{}, Paths: transport.NewPaths(transport.PathsConfig{Self: "x"})}))
		testkit.Run(t, c.Run)
		synctest.Wait()
		begun := time.Now()
		err := c.Serve(t.Context(), "b", &api.FetchPrefixRequest{Model: "m", Ids: prefix(24, 1).IDs, Fingerprint: 77}, nil)
		if took := time.Since(begun); status.Code(err) != codes.DeadlineExceeded || took != engineTimeout {
			t.Errorf("%v after %v", err, took)
		}
		close(slow.letGo)
		time.Sleep(engineTimeout)
		synctest.Wait()
		if slow.pinned() != 0 {
			t.Errorf("%d references and reservations are left", slow.pinned())
		}
	})
}
