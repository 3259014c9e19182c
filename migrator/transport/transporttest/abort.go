package transporttest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/transport"
)

// checkContext is a context that calls a function when its Err is called for the n-th
// time: a way to interfere at each step of a call, whatever its steps are.
type checkContext struct {
	context.Context
	cancel context.CancelFunc
	left   atomic.Int64
	then   func()
}

// atCheck returns a context that calls then at check n, counted from 0; nil cancels it.
func atCheck(n int, then func()) *checkContext {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	if then == nil {
		then = cancel
	}
	c := &checkContext{Context: ctx, cancel: cancel, then: then}
	c.left.Store(int64(n))
	return c
}

func (c *checkContext) Err() error {
	if c.left.Add(-1) == -1 {
		c.then()
	}
	return c.Context.Err()
}

// requireUnchanged fails if a memory changes within a moment: something writes after a
// fence.
func requireUnchanged(t *testing.T, what string, e End) {
	t.Helper()
	e.Fill(99)
	want := slices.Clone(e.Memory.Bytes)
	time.Sleep(time.Millisecond) // gives an illegal writer time to write
	if !bytes.Equal(e.Read(), want) {
		t.Errorf("%s: the memory changed after the fence", what)
	}
}

func testAbortOpen(t *testing.T, b *suite) {
	b.start(wide, narrow)
	for n := range 6 {
		ctx := atCheck(n, nil)
		p, err := b.Target.Transport.Open(ctx, Receiver, b.Export(b.Grant()))
		if err == nil {
			p.Close()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled at check %d: %v", n, err)
		}
		ctx.cancel()
	}
	for _, after := range []time.Duration{0, 10 * time.Microsecond, 50 * time.Microsecond, 200 * time.Microsecond} {
		ctx, cancel := context.WithCancel(b.Context())
		stop := time.AfterFunc(after, cancel)
		p, err := b.Target.Transport.Open(ctx, Receiver, b.Export(b.Grant()))
		if err == nil {
			p.Close()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled after %v: %v", after, err)
		}
		stop.Stop()
		cancel()
	}
}

// testAbortPull checks that a pull which is cancelled, at any step, writes nothing after
// it has returned, and that its puller fails from then on.
func testAbortPull(t *testing.T, b *suite) {
	b.start(large, large)
	plan := b.Plan(large.Blocks, 1)
	puller := b.Open()
	whole := testkit.Must(b.Pull(puller, plan))
	puller.Close()

	cancelled := func(name string, ctx context.Context) {
		t.Helper()
		puller := b.Open()
		defer puller.Close()
		_, err := puller.Pull(ctx, plan)
		if err == nil {
			return
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		requireUnchanged(t, name, b.Target)
		if _, err := b.Pull(puller, plan); err == nil {
			t.Errorf("%s: the puller still works", name)
		}
	}
	for n := 1; n < 1<<14; n *= 3 {
		ctx := atCheck(n-1, nil)
		cancelled("cancelled at a check", ctx)
		ctx.cancel()
	}
	for i := range 10 {
		ctx, cancel := context.WithCancel(b.Context())
		stop := time.AfterFunc(whole.Duration*time.Duration(i)/10, cancel)
		cancelled("cancelled during the pull", ctx)
		stop.Stop()
		cancel()
	}
}

// result is the result of a pull in a goroutine of its own.
type result struct {
	took time.Duration
	err  error
}

func (b *suite) startPull(p transport.Puller, plan transport.Plan) <-chan result {
	ended := make(chan result, 1)
	go func() {
		stats, err := b.Pull(p, plan)
		ended <- result{stats.Duration, err}
	}()
	return ended
}

// testClose calls Close from another goroutine, at any time of a pull.
func testClose(t *testing.T, b *suite) {
	b.start(large, large)
	plan := b.Plan(large.Blocks, 1)
	took := time.Duration(0)
	for i := range 12 {
		puller := b.Open()
		result := b.startPull(puller, plan)
		if i == 0 {
			r := <-result
			if r.err != nil {
				t.Fatal(r.err)
			}
			took = r.took
		} else {
			time.Sleep(took * time.Duration(i-1) / 10)
		}
		if err := puller.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		requireUnchanged(t, "after Close", b.Target)
		if i > 0 {
			<-result
		}
		if err := puller.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if _, err := b.Pull(puller, plan); err == nil {
			t.Error("Pull of a closed puller succeeded")
		}
	}
}

// testRevoke revokes at any step and time of a pull: what is read afterwards must not
// count as pulled. The source's memory is overwritten as soon as Revoke returns.
func testRevoke(t *testing.T, b *suite) {
	b.start(large, large)
	original := slices.Clone(b.Source.Memory.Bytes)
	plan := b.Plan(large.Blocks, 1)
	want := plainCopy(b.Target.Read(), b.Pair, plan)

	// pullRevoked pulls while revoke is called, and reports whether the pull failed.
	pullRevoked := func(pull func(p transport.Puller, revoke func()) error) bool {
		t.Helper()
		b.Source.write(func(now []byte) { copy(now, original) })
		b.Target.Fill(2)
		puller := b.Open()
		move := b.Migration
		defer puller.Close()
		err := pull(puller, func() {
			b.Source.Transport.Revoke(move)
			b.Source.Fill(5)
		})
		var corrupt *transport.CorruptError
		switch {
		case errors.As(err, &corrupt):
			t.Error("a pull read after the fence, and reported blocks to be pulled again")
		case err == nil && !bytes.Equal(b.Target.Read(), want):
			t.Error("a pull read after the fence, and reported success")
		}
		if _, err := b.Pull(puller, plan); err == nil || errors.As(err, &corrupt) {
			t.Errorf("a pull after Revoke: %v", err)
		}
		return err != nil
	}

	took := time.Duration(0)
	pullRevoked(func(p transport.Puller, revoke func()) error {
		stats, err := b.Pull(p, plan)
		took = stats.Duration
		revoke()
		return err
	})
	for n := 1; n < 1<<10; n *= 3 {
		failed := pullRevoked(func(p transport.Puller, revoke func()) error {
			ctx := atCheck(n-1, revoke)
			defer ctx.cancel()
			_, err := p.Pull(ctx, plan)
			if ctx.left.Load() >= 0 {
				revoke() // the pull has fewer steps
			}
			return err
		})
		if n == 1 && !failed {
			t.Error("a pull whose grant was revoked at its first step succeeded")
		}
	}
	for i := range 8 {
		pullRevoked(func(p transport.Puller, revoke func()) error {
			ended := b.startPull(p, plan)
			time.Sleep(took * time.Duration(i) / 8)
			revoke()
			return (<-ended).err
		})
	}
}

// testSourceEnds checks that a source which ends, at any time of a pull, fails it. It exports nothing, and accepts no
// receiver, before and after its Run.
func testSourceEnds(t *testing.T, b *suite) {
	fresh := b.make(t, wide, narrow)
	defer fresh.Source.Memory.Close()
	defer fresh.Target.Memory.Close()
	g := transport.Grant{Migration: "source-0/0", Receiver: Receiver, Deadline: time.Now().Add(time.Hour)}
	if _, err := fresh.Source.Transport.Export(g); err == nil {
		t.Error("Export before Run succeeded")
	}
	took := time.Duration(0)
	for i := range 8 {
		b.start(large, large)
		plan := b.Plan(large.Blocks, 1)
		want := plainCopy(b.Target.Read(), b.Pair, plan)
		unused, puller := b.Export(b.Grant()), b.Open()
		ended := b.startPull(puller, plan)
		if i > 0 {
			time.Sleep(took * time.Duration(i-1) / 8)
			b.stopSource()
		}
		r := <-ended
		took = max(took, r.took)
		if r.err == nil && !bytes.Equal(b.Target.Read(), want) {
			t.Error("a pull reported success and differs from a plain copy")
		}
		b.stopSource()
		if _, err := b.Pull(puller, plan); err == nil {
			t.Error("a pull from a stopped source succeeded")
		}
		puller.Close()
		if _, err := b.Source.Transport.Export(b.Grant()); err == nil {
			t.Error("Export after Run has ended succeeded")
		}
		if p, err := b.OpenOffer(Receiver, unused); err == nil {
			p.Close()
			t.Error("Open after the source's Run has ended succeeded")
		}
		b.Source.Transport.Revoke(b.Migration)
	}
}
