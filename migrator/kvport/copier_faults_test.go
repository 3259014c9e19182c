package kvport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
)

// Whatever fails at whichever step, no block is stored without its content, nothing stays pinned, and the next
// pull succeeds. Whatever the reason of a holder's refusal is, the puller learns it.
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
	afterPin := func(also func(*engine)) func(*world) { // the holder's engine restarts
		return func(w *world) {
			pinned := false
			w.a.gate = func(c string) error {
				if c == "memory" && pinned {
					w.a.gate = nil
					w.a.restart()
					also(w.a)
				}
				pinned = pinned || c == "pin"
				return nil
			}
		}
	}
	script := func(faults ...transporttest.Fault) func(*world) { return func(w *world) { w.faults.Set(faults...) } }
	for name, x := range map[string]struct {
		fault func(w *world)
		ok    bool // the pull succeeds all the same
		late  bool // the engine may store the prefix although the pull failed
		err   string
		is    error // nil: any
	}{
		"the own engine is full": {fault: func(w *world) {
			pin, err := w.b.PinPrefix(t.Context(), "others", prefix(poolBlocks*blockTokens, 7), true)
			if err != nil || len(pin.Blocks) != poolBlocks {
				t.Errorf("%d blocks are pinned, %v", len(pin.Blocks), err)
			}
			time.AfterFunc(50*time.Millisecond, func() { w.b.Release(context.Background(), "others") })
		}},
		"the own engine refuses to pin":         {fault: func(w *world) { w.b.gate = fail(refused, "pin") }},
		"the own engine's pin is lost":          {fault: func(w *world) { w.b.gate = fail(errLost, "pin") }},
		"the own engine's pin and release fail": {fault: func(w *world) { w.b.gate = fail(errLost, "pin", "release", "release") }},
		"the own engine refuses to commit":      {fault: func(w *world) { w.b.gate = fail(refused, "commit") }},
		"the own engine's commit is lost":       {fault: func(w *world) { w.b.gate = fail(errLost, "commit") }, late: true},
		"the own engine restarts": {err: ErrUnavailable.Error(), fault: func(w *world) {
			w.b.gate = func(c string) error {
				if c == "pin" {
					w.b.gate = nil
					w.b.restart()
				}
				return nil
			}
		}},
		"no KV can be received":                                  {fault: func(w *world) { w.away = true; time.AfterFunc(20*time.Millisecond, func() {}) }},
		"the holder's engine refuses to pin":                     {fault: func(w *world) { w.a.gate = fail(refused, "pin") }},
		"the holder's engine is away":                            {fault: func(w *world) { w.a.gate = fail(fmt.Errorf("pin: %w", ErrUnavailable), "pin") }, is: ErrUnavailable},
		"the holder's engine has no cache":                       {fault: func(w *world) { w.a.gate = fail(ErrNoPrefixes, "pin") }, is: ErrNoPrefixes},
		"the holder's engine is too slow":                        {fault: func(w *world) { w.a.gate = fail(context.DeadlineExceeded, "pin") }, is: context.DeadlineExceeded},
		"the holder's engine has it evicted":                     {fault: func(w *world) { w.a.restart() }, is: ErrGone},
		"the holder's engine restarts between pin and checksums": {fault: afterPin(func(*engine) {}), is: ErrUnavailable},
		"the holder's engine is gone after the pin":              {fault: afterPin(func(e *engine) { e.memory = nil }), is: ErrUnavailable},
		"the holder's engine has another layout": {fault: func(w *world) {
			w.ask = func(ctx context.Context, q *api.FetchPrefixRequest, serve func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
				q.Fingerprint++
				return serve(ctx, q)
			}
		}, is: ErrDifferent},
		"the holder's release fails":  {fault: func(w *world) { w.a.gate = fail(refused, "release", "release") }, ok: true},
		"the transport does not open": {fault: script(transporttest.Fault{At: transporttest.AtOpen, Kind: transporttest.Cut})},
		"the ticket is refused":       {fault: script(transporttest.Fault{At: transporttest.AtOpen, Kind: transporttest.Refuse})},
		"the connection is cut":       {fault: script(transporttest.Fault{At: transporttest.AtPull, Block: 3, Kind: transporttest.Cut})},
		"a byte is flipped":           {fault: script(transporttest.Fault{At: transporttest.AtPull, Block: 3, Kind: transporttest.Corrupt}), ok: true},
		"a byte is flipped three times": {fault: script(transporttest.Fault{At: transporttest.AtPull, Block: 3, Kind: transporttest.Corrupt},
			transporttest.Fault{At: transporttest.AtPull, Nth: 1, Kind: transporttest.Corrupt}, transporttest.Fault{At: transporttest.AtPull, Nth: 2, Kind: transporttest.Corrupt})},
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
		"the transport fails at the end": {fault: func(w *world) {
			w.afterPull = func(context.Context) error { return errors.New("no link") }
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
			if x.is != nil && !errors.Is(err, x.is) {
				t.Errorf("%v, want %v", err, x.is)
			}
			w.waitUnpinned(t)
			w.waitFree(t)
			if cached := w.b.check(t, p); cached > 0 && !x.ok && !x.late {
				t.Errorf("%d tokens are cached after the pull has failed", cached)
			}
			w.a.gate, w.b.gate, w.ask, w.afterPull, w.away, w.a.pinsBy, w.b.pinsBy = nil, nil, nil, nil, false, 0, 0
			w.faults.Set()
			if w.a.memory == nil {
				w.a.restart()
			}
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
			w.faults.Set(transporttest.Fault{At: transporttest.AtPull, Block: 2, Kind: transporttest.Hang})
		},
		"in the opening": func(w *world) { w.faults.Set(transporttest.Fault{At: transporttest.AtOpen, Kind: transporttest.Hang}) },
		"at the holder": func(w *world) {
			w.ask = func(ctx context.Context, _ *api.FetchPrefixRequest, _ func(context.Context, *api.FetchPrefixRequest) (*api.FetchPrefixAnswer, error)) (*api.FetchPrefixAnswer, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		},
		"at the own engine": func(w *world) {
			w.b.gate = func(call string) error {
				if call == "commit" {
					time.Sleep(50 * time.Millisecond) // longer than the request lives
					return refused
				}
				return nil
			}
		},
		"at the end of the transport": func(w *world) {
			w.afterPull = func(ctx context.Context) error {
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

// Many pulls at once, of the same prefixes and others, with faults at random: no block is wrong or leaked.
func TestManyAtOnce(t *testing.T) {
	w := start(t, func(_ *world, a, b *CopierConfig) { a.MaxConcurrent, b.MaxConcurrent = 8, 8 })
	var script []transporttest.Fault
	for i := range 30 {
		script = append(script, transporttest.Fault{At: transporttest.AtPull, Nth: 3 * i, Kind: []transporttest.Kind{transporttest.Corrupt, transporttest.Cut}[i%2]})
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

// Run ends all that is under way, at either side, and returns after the last call to the engine.
func TestRunEnds(t *testing.T) {
	p := prefix(24, 1)
	pulls := func(t *testing.T, w *world) (held, proceed chan struct{}, ended chan error) {
		w.a.compute(p)
		held, proceed, ended = make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)
		w.afterPull = func(ctx context.Context) error {
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
