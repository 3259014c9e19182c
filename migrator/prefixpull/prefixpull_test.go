package prefixpull

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	spancodes "go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/blocks"
	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/migrator/internal/memtransport"
	"github.com/cascadeinfer/cascade/migrator/paths"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

// What the holder has beyond the own engine is copied, in whole blocks, and only for the same model and salt.
func TestPull(t *testing.T) {
	for _, x := range []struct {
		name       string
		held, have int // tokens that a and b have computed before
		ask        int // ids of the prefix
		salt       string
		tokens     policies.Tokens
		cached     int
		err        error
	}{
		{name: "all of it", held: 24, ask: 24, tokens: 24, cached: 24},
		{name: "whole blocks", held: 23, ask: 23, tokens: 20, cached: 20},
		{name: "the rest of it", held: 24, have: 9, ask: 24, tokens: 16, cached: 24},
		{name: "less than asked for", held: 12, ask: 24, tokens: 12, cached: 12},
		{name: "less than held", held: 24, ask: 17, tokens: 16, cached: 16},
		{name: "the own engine has it", held: 24, have: 24, ask: 24, cached: 24},
		{name: "the own engine has as much", held: 12, have: 12, ask: 24, cached: 12, err: ErrGone},
		{name: "the holder has nothing", have: 4, ask: 24, cached: 4, err: ErrGone},
		{name: "another tenant's", held: 24, ask: 24, salt: "tenant", err: ErrGone},
		{name: "less than a block", held: 24, ask: 3},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := start(t, nil)
			w.a.compute(prefix(x.held, 1))
			w.b.compute(prefix(x.have, 1))
			p := prefix(x.ask, 1)
			p.Salt = x.salt
			pulled, err := w.puller.Pull(t.Context(), "a", p)
			tokens := pulled.Tokens
			if tokens != x.tokens || !errors.Is(err, x.err) {
				t.Errorf("%d tokens, %v; want %d, %v", tokens, err, x.tokens, x.err)
			}
			w.a.check(t, p)
			if cached := w.b.check(t, p); cached != x.cached {
				t.Errorf("%d tokens are cached, want %d", cached, x.cached)
			}
			if s := w.holder.Served(); s.Tokens != uint64(x.tokens) {
				t.Errorf("served %+v", s)
			}
		})
	}
}

// Whatever fails at whichever step, no block is stored without its content, nothing stays pinned, and the next
// pull succeeds.
func TestFaults(t *testing.T) {
	p := prefix(24, 1)
	fail := func(err error, calls ...string) func(string) error {
		var mu sync.Mutex
		return func(call string) error {
			mu.Lock()
			defer mu.Unlock()
			if len(calls) > 0 && calls[0] == call {
				calls = calls[1:]
				return err
			}
			return nil
		}
	}
	spoil := func(f func(*api.FetchPrefixAnswer)) func(*world) {
		return func(w *world) {
			w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
				a, err := serve(ctx, q)
				if err == nil {
					f(a)
				}
				return a, err
			}
		}
	}
	script := func(faults ...memtransport.Fault) func(*world) { return func(w *world) { w.faults.Set(faults...) } }
	for name, x := range map[string]struct {
		fault func(w *world)
		ok    bool // the pull succeeds all the same
		late  bool // the engine may store the prefix although the pull failed
		err   string
	}{
		"the own engine is full": {fault: func(w *world) {
			pin, err := w.b.PinPrefix(t.Context(), "others", prefix(poolBlocks*blockTokens, 7), true)
			if err != nil || len(pin.Blocks) != poolBlocks {
				t.Fatal(err)
			}
			time.AfterFunc(50*time.Millisecond, func() { w.b.Release(context.Background(), "others") })
		}},
		"the own engine refuses to pin":         {fault: func(w *world) { w.b.gate = fail(refused, "pin") }},
		"the own engine's pin is lost":          {fault: func(w *world) { w.b.gate = fail(errLost, "pin") }},
		"the own engine's pin and release fail": {fault: func(w *world) { w.b.gate = fail(errLost, "pin", "release", "release") }},
		"the own engine refuses to commit":      {fault: func(w *world) { w.b.gate = fail(refused, "commit") }},
		"the own engine's commit is lost":       {fault: func(w *world) { w.b.gate = fail(errLost, "commit") }, late: true},
		"the own engine restarts": {err: blocks.ErrUnavailable.Error(), fault: func(w *world) {
			w.b.gate = func(c string) error {
				if c == "pin" {
					w.b.gate = nil
					w.b.restart()
				}
				return nil
			}
		}},
		"no KV can be received":              {fault: func(w *world) { w.away = true; time.AfterFunc(20*time.Millisecond, func() {}) }},
		"the holder's engine refuses to pin": {fault: func(w *world) { w.a.gate = fail(refused, "pin") }},
		"the holder's engine has it evicted": {fault: func(w *world) { w.a.restart() }},
		"the holder's engine restarts between pin and checksums": {fault: func(w *world) {
			pinned := false
			w.a.gate = func(c string) error {
				if c == "memory" && pinned {
					w.a.gate = nil
					w.a.restart()
				}
				pinned = pinned || c == "pin"
				return nil
			}
		}},
		"the holder's release fails":  {fault: func(w *world) { w.a.gate = fail(refused, "release", "release") }, ok: true},
		"the transport does not open": {fault: script(memtransport.Fault{At: memtransport.AtOpen, Kind: memtransport.Cut})},
		"the ticket is refused":       {fault: script(memtransport.Fault{At: memtransport.AtOpen, Kind: memtransport.Refuse})},
		"the connection is cut":       {fault: script(memtransport.Fault{At: memtransport.AtPull, Block: 3, Kind: memtransport.Cut})},
		"a byte is flipped":           {fault: script(memtransport.Fault{At: memtransport.AtPull, Block: 3, Kind: memtransport.Corrupt}), ok: true},
		"a byte is flipped three times": {fault: script(memtransport.Fault{At: memtransport.AtPull, Block: 3, Kind: memtransport.Corrupt},
			memtransport.Fault{At: memtransport.AtPull, Nth: 1, Kind: memtransport.Corrupt}, memtransport.Fault{At: memtransport.AtPull, Nth: 2, Kind: memtransport.Corrupt})},
		"the own engine pins blocks of another size":      {fault: func(w *world) { w.b.pinsBy = 2 * blockTokens }, err: "the engine was restarted"},
		"the holder's engine pins blocks of another size": {fault: func(w *world) { w.a.pinsBy = 2 * blockTokens }, err: ErrGone.Error()},
		"the holder sends too few blocks":                 {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Blocks = a.Blocks[1:] }), err: "invalid answer: 5 blocks"},
		"the holder sends too few checksums":              {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Sums = a.Sums[1:] }), err: "invalid answer: 6 blocks and 11 checksums"},
		"the holder sends other checksums":                {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Sums[2]++ })},
		"the holder sends other blocks":                   {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Blocks[0], a.Blocks[1] = a.Blocks[1], a.Blocks[0] })},
		"the holder sends blocks of no pool":              {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Blocks[0] = poolBlocks })},
		"the holder sends half a block":                   {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Tokens, a.Blocks, a.Sums = 22, a.Blocks[:5], a.Sums[:10] }), err: "invalid answer: 22 tokens"},
		"the holder sends nothing":                        {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Tokens, a.Blocks, a.Sums = 0, nil, nil }), err: "invalid answer: 0 tokens"},
		"the holder sends more than asked":                {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Tokens = 1 << 63 }), err: "invalid answer: 9223372036854775808 tokens"},
		"the holder sends no transports":                  {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Offers = nil })},
		"the holder sends half a ticket":                  {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Offers[0].Ticket = a.Offers[0].Ticket[:8] })},
		"the holder sends another's ticket":               {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Offers[0].Ticket[3]++ })},
		"the holder dies after its answer":                {fault: spoil(func(a *api.FetchPrefixAnswer) { a.Offers[0].Address = "nowhere" })},
		"the holder cannot be reached": {fault: func(w *world) {
			w.ask = func(context.Context, *api.FetchPrefixRequest, func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
				return nil, errors.New("connection refused")
			}
		}},
		"the pace fails": {fault: func(w *world) {
			w.pace = func(context.Context, time.Time, int64) error { return errors.New("no link") }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, nil)
			w.a.compute(p)
			x.fault(w)
			pulled, err := w.puller.Pull(t.Context(), "a", p)
			tokens := pulled.Tokens
			if (err == nil) != x.ok || x.ok && tokens != 24 {
				t.Errorf("%d tokens, %v", tokens, err)
			}
			if x.err != "" {
				testkit.WantError(t, err, x.err)
			}
			w.waitUnpinned(t)
			w.waitFree(t)
			if cached := w.b.check(t, p); cached > 0 && !x.ok && !x.late {
				t.Errorf("%d tokens are cached after the pull has failed", cached)
			}
			w.a.gate, w.b.gate, w.ask, w.pace, w.away, w.a.pinsBy, w.b.pinsBy = nil, nil, nil, nil, false, 0, 0
			w.faults.Set()
			w.a.compute(p)
			if _, err := w.puller.Pull(t.Context(), "a", p); err != nil || w.b.check(t, p) != 24 {
				t.Errorf("the next one: %v, %d tokens", err, w.b.check(t, p))
			}
		})
	}
}

// A pull that hangs ends with its context, and the blocks are released after the last byte was written.
func TestDeadline(t *testing.T) {
	p := prefix(24, 1)
	for name, fault := range map[string]func(w *world){
		"in the transport": func(w *world) {
			w.faults.Set(memtransport.Fault{At: memtransport.AtPull, Block: 2, Kind: memtransport.Hang})
		},
		"in the opening": func(w *world) { w.faults.Set(memtransport.Fault{At: memtransport.AtOpen, Kind: memtransport.Hang}) },
		"at the holder": func(w *world) {
			w.ask = func(ctx context.Context, _ *api.FetchPrefixRequest, _ func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		},
		"at the pace": func(w *world) {
			w.pace = func(ctx context.Context, _ time.Time, bytes int64) error {
				if bytes != 24*1000 {
					t.Errorf("%d bytes", bytes)
				}
				<-ctx.Done()
				return ctx.Err()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, nil)
			w.a.compute(p)
			fault(w)
			gone := errors.New("the client has gone")
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(20*time.Millisecond, func() { cancel(gone) })
			if _, err := w.puller.Pull(ctx, "a", p); !errors.Is(err, gone) {
				t.Error(err)
			}
			w.waitUnpinned(t)
			if cached := w.b.check(t, p); cached != 0 {
				t.Errorf("%d tokens are cached", cached)
			}
		})
	}
}

// An engine that does not answer does not keep Pull: the caller goes on, and the reservation is released when the
// engine answers again.
func TestEngineHangs(t *testing.T) {
	w := start(t, nil)
	w.a.compute(prefix(24, 1))
	hangs := make(chan struct{})
	w.b.gate = func(call string) error {
		if call == "commit" {
			<-hangs
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.puller.Pull(ctx, "a", prefix(24, 1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if w.b.pinned() == 0 {
		t.Error("nothing is reserved although the engine hangs")
	}
	close(hangs)
	w.waitUnpinned(t)
	w.b.check(t, prefix(24, 1))
}

// While the own engine does not answer a release, the holder's blocks are free.
func TestHolderIsFreedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.a.compute(prefix(24, 1))
		w.pace = func(context.Context, time.Time, int64) error { return errors.New("no link") }
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

// Run ends all that is under way, at either side, and returns after the last call to the engine.
func TestRunEnds(t *testing.T) {
	p := prefix(24, 1)
	pulls := func(t *testing.T, w *world) (held, proceed chan struct{}, ended chan error) {
		w.a.compute(p)
		held, proceed, ended = make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
		w.pace = func(ctx context.Context, _ time.Time, _ int64) error {
			held <- struct{}{}
			select {
			case <-ctx.Done():
			case <-proceed:
			}
			return ctx.Err()
		}
		go func() { _, err := w.puller.Pull(context.Background(), "a", p); ended <- err }()
		<-held
		return held, proceed, ended
	}
	bubble := func(name string, f func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
	bubble("of the puller", func(t *testing.T) {
		w := start(t, nil)
		_, _, ended := pulls(t, w)
		w.stopPuller()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		w.b.AbandonSession(nil) // as the end of the process does
	})
	bubble("of the holder", func(t *testing.T) {
		w := start(t, nil)
		_, proceed, ended := pulls(t, w)
		begun := time.Now()
		w.stopHolder()
		w.calls.Wait() // Serve has returned
		if took := time.Since(begun); took > 0 {
			t.Errorf("Run has returned after %v", took)
		}
		close(proceed)
		if err := <-ended; err != nil {
			t.Errorf("the blocks were copied before: %v", err)
		}
		w.a.AbandonSession(nil)
	})
	bubble("after the last call", func(t *testing.T) {
		w := start(t, nil)
		hangs, calls := make(chan struct{}), make(chan struct{}, 1)
		w.b.gate = func(call string) error {
			if call == "commit" {
				calls <- struct{}{}
				<-hangs
			}
			return nil
		}
		w.a.compute(p)
		go w.puller.Pull(context.Background(), "a", p)
		<-calls
		stopped := make(chan struct{})
		go func() { w.stopPuller(); close(stopped) }()
		select {
		case <-stopped:
			t.Error("Run has returned during a call to the engine")
		case <-time.After(20 * time.Millisecond):
		}
		close(hangs)
		<-stopped
	})
}

// A holder keeps a prefix for serveTimeout, however long its peer reads.
func TestServeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, nil)
		w.a.compute(prefix(24, 1))
		begun, answered := time.Now(), false
		err := w.holder.Serve(context.Background(), "b", &api.FetchPrefixRequest{Model: "m", Ids: prefix(24, 1).IDs, Fingerprint: 77}, func(*api.FetchPrefixAnswer) error {
			answered = true
			return nil
		})
		if took := time.Since(begun); err != nil || !answered || took != serveTimeout || w.a.pinned() > 0 {
			t.Errorf("%v after %v, answered: %v, %d references and reservations are left", err, took, answered, w.a.pinned())
		}
	})
}

// A release is tried again while the engine refuses it, less and less often, and then its session ends. An engine that has
// no such reservation, or is away, need not release it.
func TestRelease(t *testing.T) {
	for err, want := range map[error]struct{ calls, abandoned int }{
		refused:               {20, 1}, // after 0, 0.1, 0.3, … 3.1 s, and then every two seconds
		blocks.ErrNotFound:    {1, 0},
		blocks.ErrUnavailable: {1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, calls := newEngine(), 0
			e.gate = func(string) error { calls++; return err }
			c := testkit.Must(New(Config{Engine: e, Network: &world{}, Paths: func() *paths.Set { return nil }}))
			begun := time.Now()
			c.releaseOnce(t.Context(), "x")
			if took := time.Since(begun); calls != want.calls || e.abandoned != want.abandoned || took > releaseTimeout+maxReleaseRetry {
				t.Errorf("%v: %d calls, %d sessions abandoned after %v; want %d, %d", err, calls, e.abandoned, took, want.calls, want.abandoned)
			}
		})
	}
}

// slowEngine is an engine that makes a pin when it is let go, whether or not the call has been cancelled by then, as
// an engine behind a connection does.
type slowEngine struct {
	*engine
	pinning chan struct{} // gets a value for each call
	letGo   chan struct{}
}

func (e *slowEngine) PinPrefix(ctx context.Context, id string, p blocks.Prefix, reserve bool) (blocks.PinnedPrefix, error) {
	type result struct {
		pinned blocks.PinnedPrefix
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
		return blocks.PinnedPrefix{}, ctx.Err()
	}
}

// A request that ends while its prefix is pinned, at the own engine and at the holder's, leaves nothing pinned: the
// release comes after the pin.
func TestReleaseFollowsPin(t *testing.T) {
	p := prefix(24, 1)
	for _, at := range []string{"the own engine", "the holder's engine"} {
		var slow *slowEngine
		w := start(t, func(w *world, a, b *Config) {
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

// A peer whose prefix is not pinned in time gets its answer at once, not when the late pin has been released.
func TestLatePinForPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &slowEngine{newEngine(), make(chan struct{}, 1), make(chan struct{})}
		c := testkit.Must(New(Config{Engine: slow, Network: &world{}, Paths: func() *paths.Set { return nil }}))
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
		c := testkit.Must(New(Config{Engine: slow, Network: &world{}, Paths: func() *paths.Set { return nil }, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
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

// Whatever the reason of a holder's refusal is, the puller learns it.
func TestReasonsOfRefusals(t *testing.T) {
	refuseToPin := func(err error) func(*world) {
		return func(w *world) {
			w.a.gate = func(call string) error {
				if call == "pin" {
					return err
				}
				return nil
			}
		}
	}
	for name, x := range map[string]struct {
		fault func(w *world)
		want  error
	}{
		"away":     {refuseToPin(fmt.Errorf("pin: %w", blocks.ErrUnavailable)), blocks.ErrUnavailable},
		"no cache": {refuseToPin(blocks.ErrNoPrefixes), blocks.ErrNoPrefixes},
		"too slow": {refuseToPin(context.DeadlineExceeded), context.DeadlineExceeded},
		"restarted": {func(w *world) {
			pinned := false
			w.a.gate = func(call string) error {
				if call == "memory" && pinned {
					w.a.gate = nil
					w.a.restart()
				}
				pinned = pinned || call == "pin"
				return nil
			}
		}, blocks.ErrUnavailable},
		"gone after the pin": {func(w *world) {
			pinned := false
			w.a.gate = func(call string) error {
				if call == "memory" && pinned {
					w.a.gate = nil
					w.a.restart()
					w.a.memory = nil
				}
				pinned = pinned || call == "pin"
				return nil
			}
		}, blocks.ErrUnavailable},
		"evicted": {func(w *world) { w.a.restart() }, ErrGone},
		"other layout": {func(w *world) {
			w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
				q.Fingerprint++
				return serve(ctx, q)
			}
		}, ErrDifferent},
	} {
		w := start(t, nil)
		w.a.compute(prefix(24, 1))
		x.fault(w)
		if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", name, err, x.want)
		}
		w.waitUnpinned(t)
	}
}

// Beyond the limit, pulls and calls of peers are refused, and places are given back.
func TestLimits(t *testing.T) {
	w := start(t, func(_ *world, a, b *Config) { a.MaxConcurrent, b.MaxConcurrent = 1, 2 })
	w.a.compute(prefix(24, 1))
	hold, held := make(chan struct{}), make(chan struct{}, 4)
	w.pace = func(ctx context.Context, _ time.Time, _ int64) error {
		held <- struct{}{}
		<-hold
		return nil
	}
	errs := make(chan error, 3)
	go func() { _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); errs <- err }()
	<-held
	// The holder has one place.
	if _, err := w.puller.Pull(t.Context(), "a", prefix(12, 1)); !errors.Is(err, ErrBusy) {
		t.Errorf("the second one: %v", err)
	}
	// The puller has two. It gives a place back once the reservation is released.
	testkit.WaitFor(t, "the second one's place is free", func() bool { return len(w.puller.pulling) == 1 })
	asked := make(chan struct{}, 4)
	w.ask = func(ctx context.Context, _ *api.FetchPrefixRequest, _ func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		asked <- struct{}{}
		<-hold
		return nil, errors.New("no more")
	}
	go func() { _, err := w.puller.Pull(t.Context(), "a", prefix(8, 2)); errs <- err }()
	<-asked
	if _, err := w.puller.Pull(t.Context(), "a", prefix(8, 3)); !errors.Is(err, ErrBusy) || len(asked) > 0 {
		t.Errorf("the third one: %v", err)
	}
	close(hold)
	<-errs
	<-errs
	w.ask = nil
	testkit.WaitFor(t, "all places are free", func() bool { return len(w.puller.pulling)+len(w.holder.serving) == 0 })
	if s := w.holder.Served(); s.Prefixes != 1 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

// What a peer asks for is validated, and its answers have the codes that the caller maps.
func TestServeRefuses(t *testing.T) {
	w := start(t, nil)
	w.a.compute(prefix(24, 1))
	for name, x := range map[string]struct {
		change func(q *api.FetchPrefixRequest)
		want   codes.Code
	}{
		"another layout": {func(q *api.FetchPrefixRequest) { q.Fingerprint++ }, codes.FailedPrecondition},
		"half a block":   {func(q *api.FetchPrefixRequest) { q.First = 2 }, codes.InvalidArgument},
		"beyond the ids": {func(q *api.FetchPrefixRequest) { q.First = 1 << 63 }, codes.InvalidArgument},
		"all is there":   {func(q *api.FetchPrefixRequest) { q.First = 24 }, codes.NotFound},
		"other ids":      {func(q *api.FetchPrefixRequest) { q.Ids[0]++ }, codes.NotFound},
		"another model":  {func(q *api.FetchPrefixRequest) { q.Model = "lora" }, codes.NotFound},
		"another tenant": {func(q *api.FetchPrefixRequest) { q.CacheSalt = "x" }, codes.NotFound},
	} {
		q := &api.FetchPrefixRequest{Model: "m", Ids: prefix(24, 1).IDs, Fingerprint: 77}
		x.change(q)
		if _, err := w.serve(t.Context(), q); status.Code(err) != x.want {
			t.Errorf("%s: %v", name, err)
		}
		w.waitUnpinned(t)
	}
}

// A ticket is for one receiver and for one use.
func TestTicketIsUsedOnce(t *testing.T) {
	w := start(t, nil)
	w.a.compute(prefix(24, 1))
	var stolen *api.FetchPrefixAnswer
	w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		a, err := serve(ctx, q)
		if err == nil && stolen != nil {
			a.Offers[0].Ticket = stolen.Offers[0].Ticket
		} else if err == nil {
			stolen = &api.FetchPrefixAnswer{Offers: []*api.Offer{{Ticket: append([]byte(nil), a.Offers[0].Ticket...)}}}
		}
		return a, err
	}
	if _, err := w.puller.Pull(t.Context(), "a", prefix(12, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("with the ticket of the first pull: %v", err)
	}
	if cached := w.b.check(t, prefix(24, 1)); cached != 12 {
		t.Errorf("%d tokens are cached", cached)
	}
}

// A ticket that was not used is worth nothing once the call has ended: the blocks have others' content then.
func TestTicketEndsWithItsCall(t *testing.T) {
	w := start(t, nil)
	w.a.compute(prefix(24, 1))
	unused := make(chan []byte, 1)
	w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		a, err := serve(ctx, q)
		if err != nil {
			return nil, err
		}
		unused <- a.Offers[0].Ticket
		return nil, errors.New("the answer is lost")
	}
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); err == nil {
		t.Error("no error")
	}
	w.waitFree(t)
	w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
		a, err := serve(ctx, q)
		if err == nil {
			a.Offers[0].Ticket = <-unused
		}
		return a, err
	}
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, transport.ErrRefused) {
		t.Errorf("with the ticket of the call that has ended: %v", err)
	}
}

// A holder of which no transport runs says that it cannot serve, and counts that.
func TestNoTransport(t *testing.T) {
	w := start(t, func(w *world, a, _ *Config) {
		none := paths.New(paths.Config{Self: "a", Pool: w.a})
		a.Paths = func() *paths.Set { return none }
	})
	w.a.compute(prefix(24, 1))
	if _, err := w.puller.Pull(t.Context(), "a", prefix(24, 1)); !errors.Is(err, blocks.ErrUnavailable) {
		t.Error(err)
	}
	w.waitFree(t)
	if s := w.holder.Served(); s.Prefixes != 0 || s.Refused != 1 {
		t.Errorf("%+v", s)
	}
}

// Many pulls at once, of the same prefixes and others, with faults at random: no block is wrong or leaked.
func TestManyAtOnce(t *testing.T) {
	w := start(t, func(_ *world, a, b *Config) { a.MaxConcurrent, b.MaxConcurrent = 8, 8 })
	var script []memtransport.Fault
	for i := range 30 {
		script = append(script, memtransport.Fault{At: memtransport.AtPull, Nth: 3 * i, Kind: []memtransport.Kind{memtransport.Corrupt, memtransport.Cut}[i%2]})
	}
	w.faults.Set(script...)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				p := prefix(4+4*(n%5), 1+(n+i)%3)
				w.a.compute(p)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+n%7)*time.Millisecond)
				w.puller.Pull(ctx, "a", p)
				cancel()
			}
		})
	}
	all.Wait()
	w.waitUnpinned(t)
	w.a.check(t, prefix(4, 1))
	w.b.check(t, prefix(4, 1))
}

func TestNotRunning(t *testing.T) {
	w := start(t, nil)
	c := testkit.Must(New(Config{Engine: w.b, Network: w, Paths: w.puller.cfg.Paths}))
	for range defaultConcurrent + 1 { // places are given back
		if _, err := c.Pull(t.Context(), "a", prefix(8, 1)); !errors.Is(err, ErrUnavailable) {
			t.Error(err)
		}
		if err := c.Serve(t.Context(), "a", &api.FetchPrefixRequest{}, nil); status.Code(err) != codes.Unavailable {
			t.Error(err)
		}
	}
	for name, bad := range map[string]Config{"Engine": {Network: w, Paths: c.cfg.Paths}, "Network": {Engine: w.b, Paths: c.cfg.Paths}, "Paths": {Engine: w.b, Network: w},
		"MaxConcurrent": {Engine: w.b, Network: w, Paths: c.cfg.Paths, MaxConcurrent: -1}} {
		if _, err := New(bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// Each side of a pull is in the trace of its request: the holder's span is below the puller's, and says
// what it offered, or why it did not.
func TestServeSpans(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, held := range map[string]int{"offered": 20, "refused": 0} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			tracer := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)).Tracer("test")
			w := start(t, func(_ *world, a, _ *Config) { a.Tracer = tracer })
			w.a.compute(prefix(held, 1))
			w.b.compute(prefix(8, 1))
			_, err := w.puller.Pull(frontend.ContextWithTrace(t.Context(), parent), "a", prefix(24, 1))
			if (err == nil) != (held > 0) {
				t.Fatal(err)
			}
			span := testkit.WaitForValue(t, "the holder's span", spans.Ended, func(s []sdk.ReadOnlySpan) bool { return len(s) > 0 })[0]
			attrs := map[string]string{}
			for _, a := range span.Attributes() {
				attrs[string(a.Key)] = a.Value.Emit()
			}
			want := map[string]string{"cascade.from": "a", "cascade.to": "b"}
			if held > 0 {
				want["cascade.tokens"] = "12"
			}
			if p := span.Parent(); span.Name() != "prefix.serve" || p.TraceID().String() != parent[3:35] || p.SpanID().String() != parent[36:52] || !maps.Equal(attrs, want) {
				t.Errorf("%s below %s: %v, want %v", span.Name(), p.SpanID(), attrs, want)
			}
			if failed := span.Status().Code == spancodes.Error; failed != (err != nil) {
				t.Errorf("%v, and the pull's error is %v", span.Status(), err)
			}
		})
	}
}
