package swap

import (
	"context"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

// TestUnderFire makes concurrent calls while modules are offered, trap and are closed. It
// checks that every call gets the right answer, and that no closed module is called.
func TestUnderFire(t *testing.T) {
	calls, swaps := uint64(1_000_000), 1000
	if os.Getenv("CASCADE_TEST_ALL") != "" {
		calls = 10_000_000
	}
	// Each candidate traps in 1 % of its calls; every fourth does so until the breaker
	// opens, the others run until the next one is offered.
	l := &loader{trap: func(lifecycle.Generation) uint64 { return 100 }}
	s := makeSlot(promotion.Config{Faults: 200, Ladder: []int{}, CanaryFaults: 1000}, l, nil)
	stop := testkit.Run(t, s.Run)
	var made, wrong, lost, byModules atomic.Uint64
	var group sync.WaitGroup
	over := make(chan struct{})
	for w := range 4 {
		group.Go(func() {
			for i := uint64(w); ; i += 4 {
				select {
				case <-over:
					return
				default:
				}
				lease := s.Enter(i)
				answer, by := lease.Policy.call(i)
				if by != lease.Generation {
					lost.Add(1)
				}
				lease.Leave()
				if answer != right(i) {
					wrong.Add(1)
				}
				if by != lifecycle.Native {
					byModules.Add(1)
				}
				made.Add(1)
				if i%64 == uint64(w) {
					runtime.Gosched() // lets the other goroutines run on few cores
				}
			}
		})
	}
	g := lifecycle.Generation(0)
	for n := 0; n < swaps || made.Load() < calls; n++ {
		g++
		c := stable(g)
		if n%3 == 0 {
			c.Goal = lifecycle.ToCanary // for half the requests, until the next one is offered
		}
		testkit.NoError(t, s.Offer(c))
		for statusOf(s, g).Phase < lifecycle.Canary {
			runtime.Gosched()
		}
		for until := made.Load() + calls/uint64(swaps); made.Load() < until; {
			runtime.Gosched()
		}
		if n%4 == 3 {
			for statusOf(s, g).Phase == lifecycle.Active {
				runtime.Gosched() // the breaker will open
			}
		}
	}
	close(over)
	group.Wait()
	stop()
	modules, closed := l.closed()
	if wrong.Load() > 0 || lost.Load() > 0 || l.misuse.Load() > 0 || closed != modules {
		t.Errorf("%d wrong, %d lost, %d misused, %d of %d modules closed", wrong.Load(), lost.Load(), l.misuse.Load(), closed, modules)
	}
	if byModules.Load() < made.Load()/10 {
		t.Errorf("only %d of %d calls were answered by modules", byModules.Load(), made.Load())
	}
	t.Logf("%d calls, %d of them by %d modules", made.Load(), byModules.Load(), modules)
}

// TestWayUp takes a module through shadow and canary, in the time that the gates require.
func TestWayUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loader{replay: func(context.Context) (lifecycle.Figures, error) {
			return lifecycle.Figures{Calls: 100, Differ: 3, Compared: 100}, nil
		}}
		s := newSlot(t, promotion.Config{Canary: promotion.Gate{Calls: 10}}, l)
		testkit.NoError(t, s.Offer(offer(5, lifecycle.ToActive)))
		time.Sleep(5 * second)
		if got := statusOf(s, 5); got.Phase != lifecycle.Shadow || got.Figures.Calls < 4000 || got.Figures.Differ == 0 {
			t.Errorf("after 5 s: %+v", got)
		}
		for range 1000 {
			lease := s.Enter(promotion.HashRequest("r"))
			if lease.Generation != lifecycle.Native {
				t.Fatal("what is in shadow answers")
			}
			lease.Leave()
		}
		time.Sleep(6 * second)
		for _, permille := range []int{1, 10, 100} {
			if got := statusOf(s, 5); got.Phase != lifecycle.Canary || got.Permille != permille {
				t.Errorf("%+v, want canary of %d ‰", got, permille)
			}
			by := 0
			for i := range uint64(20_000) {
				lease := s.Enter(i)
				if _, g := lease.Policy.call(i); g == 5 {
					by++
				}
				lease.Leave()
			}
			if by < 10*permille || by > 40*permille {
				t.Errorf("%d of 20000 at %d ‰", by, permille)
			}
			time.Sleep(31 * second)
		}
		if r := s.Status(); r.Active != 5 || r.Candidate != lifecycle.Native {
			t.Errorf("%+v", r)
		}
	})
}

// TestFaultTakesEffectAtOnce checks that no call gets the module once its fault is
// reported.
func TestFaultTakesEffectAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loader{}
		s := newSlot(t, promotion.Config{Faults: 2}, l)
		for _, g := range []lifecycle.Generation{4, 5} {
			testkit.NoError(t, s.Offer(stable(g)))
			synctest.Wait()
		}
		held := s.Enter(1)
		if held.Generation != 5 {
			t.Fatalf("generation %d answers", held.Generation)
		}
		s.Fault(5)
		if g := s.Enter(1); g.Generation != 5 {
			t.Error("one fault is tolerated")
		} else {
			g.Leave()
		}
		s.Fault(5)
		if g := s.Enter(1); g.Generation != 4 {
			t.Errorf("after the breaker: %d", g.Generation)
		} else {
			g.Leave()
		}
		time.Sleep(second)
		if _, closed := l.closed(); closed != 0 {
			t.Error("a module was closed under a call")
		}
		held.Leave()
		time.Sleep(second)
		if _, closed := l.closed(); closed != 1 {
			t.Error("the module was not closed after its last call")
		}
		s.RollBack(4, "by hand")
		if g := s.Enter(1); g.Generation != lifecycle.Native {
			t.Errorf("after the roll-back: %d", g.Generation)
		}
		testkit.WantError(t, s.Offer(stable(5)), "faults within")
	})
}

func TestBuildingFails(t *testing.T) {
	fails := func(context.Context, Candidate) error { return errTest }
	for want, l := range map[string]*loader{
		"verify: as the test":  {verify: fails},
		"compile: as the test": {compile: fails},
		"warm: as the test":    {warm: func(context.Context) error { return errTest }},
		"1 fault in shadow":    {replay: func(context.Context) (lifecycle.Figures, error) { return lifecycle.Figures{}, errTest }},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSlot(t, promotion.Config{}, l)
			testkit.NoError(t, s.Offer(offer(5, lifecycle.ToActive)))
			time.Sleep(second)
			if got := statusOf(s, 5); got.Phase != lifecycle.Rejected || !strings.HasPrefix(got.Reason, want) {
				t.Errorf("%+v, want %q", got, want)
			}
			if made, closed := l.closed(); made != closed {
				t.Errorf("%d of %d closed", closed, made)
			}
		})
	}
}

// TestShadowFaultLogged checks that the log names the module that failed in shadow, by
// the module's own logger where it has one.
func TestShadowFaultLogged(t *testing.T) {
	for _, own := range []*slog.Logger{nil, slog.New(slog.DiscardHandler)} {
		synctest.Test(t, func(t *testing.T) {
			var said strings.Builder
			to := slog.New(slog.NewTextHandler(&said, nil))
			l := &loader{replay: func(context.Context) (lifecycle.Figures, error) { return lifecycle.Figures{}, errTest }}
			want := "kind=" + lifecycle.BidSelect.String() + " generation=5 err="
			if own != nil {
				l.logger, want = to.With("name", "m", "version", "1.2.3"), "name=m version=1.2.3 err="
			}
			s := makeSlot(promotion.Config{}, l, to)
			stop := testkit.Run(t, s.Run)
			testkit.NoError(t, s.Offer(offer(5, lifecycle.ToActive)))
			time.Sleep(second)
			stop()
			if !strings.Contains(said.String(), `msg="recorded call failed on a policy module in shadow" `+want) {
				t.Errorf("no %q: %s", want, said.String())
			}
		})
	}
}

// TestBytesAreTheVerified offers other bytes of a generation while it is being built, and
// checks that the verified bytes are compiled.
func TestBytesAreTheVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		go1 := make(chan struct{})
		l := &loader{}
		l.verify = func(context.Context, Candidate) error { <-go1; return nil }
		compiled := byte(0)
		l.compile = func(_ context.Context, c Candidate) error { compiled = c.Module[0]; return nil }
		s := newSlot(t, promotion.Config{}, l)
		c := stable(5)
		testkit.NoError(t, s.Offer(c))
		synctest.Wait()
		c.Module = []byte{66}
		testkit.NoError(t, s.Offer(c))
		close(go1)
		synctest.Wait()
		if compiled != 5 || s.Status().Active != 5 {
			t.Errorf("compiled %d", compiled)
		}
	})
}

// TestNewerCancels checks that a newer offer ends the compilation of the older one.
func TestNewerCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loader{}
		l.compile = func(ctx context.Context, c Candidate) error {
			if c.Generation == 5 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		s := newSlot(t, promotion.Config{}, l)
		testkit.NoError(t, s.Offer(offer(5, lifecycle.ToActive)))
		synctest.Wait()
		testkit.NoError(t, s.Offer(offer(6, lifecycle.ToWarm)))
		synctest.Wait()
		if statusOf(s, 6).Phase != lifecycle.Warm || statusOf(s, 5).Phase != lifecycle.Superseded {
			t.Errorf("%+v", s.Status())
		}
	})
}

// TestStopWithACallInside checks that Run does not free a module with a call in progress.
func TestStopWithACallInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loader{}
		s := makeSlot(promotion.Config{}, l, nil)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		testkit.NoError(t, s.Offer(stable(5)))
		synctest.Wait()
		lease := s.Enter(1)
		cancel()
		testkit.WantError(t, <-ended, "calls are still in progress in 1 modules")
		if _, closed := l.closed(); closed != 0 {
			t.Error("closed under a call")
		}
		lease.Leave()
		if g := s.Enter(1); g.Generation != lifecycle.Native {
			t.Error("a stopped slot still has a module")
		}
		s.Fault(5)
		s.RollBack(5, "")
		if s.Offer(stable(6)) == nil {
			t.Error("a stopped slot takes offers")
		}
	})
}

// TestScopes checks that the canary of a refiner or partitioner is a scope, and that callers
// rate it.
func TestScopes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loader{replay: func(context.Context) (lifecycle.Figures, error) { return lifecycle.Figures{Calls: 1}, nil }}
		s := newSlot(t, promotion.Config{Kind: lifecycle.Partition}, l)
		c := offer(5, lifecycle.ToActive)
		c.Scope, c.Permille = "group-a", 0
		testkit.NoError(t, s.Offer(c))
		time.Sleep(12 * second)
		a, b := s.EnterScope("group-a"), s.EnterScope("group-b")
		if a.Generation != 5 || b.Generation != lifecycle.Native {
			t.Errorf("generations %d and %d", a.Generation, b.Generation)
		}
		a.Leave()
		b.Leave()
		s.AddFigures(5, lifecycle.Figures{Compared: 4, Differ: 4, Worse: 4})
		time.Sleep(second)
		if got := statusOf(s, 5); got.Phase != lifecycle.Rejected || !strings.Contains(got.Reason, "4 of 4 answers are worse") {
			t.Errorf("%+v", got)
		}
	})
}

func TestEnterDoesNotAllocate(t *testing.T) {
	testkit.SkipUnderRace(t)
	l := &loader{}
	s := newSlot(t, promotion.Config{}, l)
	testkit.NoError(t, s.Offer(stable(5)))
	for s.Status().Active != 5 {
		runtime.Gosched()
	}
	if n := testing.AllocsPerRun(1000, func() { s.Enter(7).Leave() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNewRefuses(t *testing.T) {
	for _, c := range []Config[fakePolicy]{
		{}, {Loader: &loader{}}, {Loader: &loader{}, Machine: promotion.Config{Kind: lifecycle.BidSelect}, Tick: -1},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v", c)
		}
	}
}

// BenchmarkEnter measures the overhead of a slot for a call.
func BenchmarkEnter(b *testing.B) {
	l := &loader{}
	s := newSlot(b, promotion.Config{}, l)
	_ = s.Offer(stable(5))
	for s.Status().Active != 5 {
		runtime.Gosched()
	}
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			s.Enter(7).Leave()
		}
	})
	b.Run("all", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				s.Enter(7).Leave()
			}
		})
	})
}

// BenchmarkRollback measures the time from the fault that opens the breaker to the first call
// that another generation answers.
func BenchmarkRollback(b *testing.B) {
	l := &loader{}
	s := newSlot(b, promotion.Config{Faults: 1}, l)
	g := lifecycle.Generation(0)
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		g++
		testkit.NoError(b, s.Offer(stable(g)))
		for s.Status().Active != g {
			runtime.Gosched()
		}
		b.StartTimer()
		from := time.Now()
		s.Fault(g)
		lease := s.Enter(1)
		took = append(took, time.Since(from))
		if lease.Generation == g {
			b.Fatal("still there")
		}
		lease.Leave()
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "p99.9-ns")
}

// BenchmarkSwaps measures the duration of a call without swaps, and with a new module every
// 2 ms. The modules are fakes, so that only the slot is measured.
func BenchmarkSwaps(b *testing.B) {
	for name, every := range map[string]time.Duration{"still": time.Hour, "swapping": 2 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			s := newSlot(b, promotion.Config{}, &loader{})
			over, done := make(chan struct{}), make(chan lifecycle.Generation)
			go func() {
				tick := time.NewTicker(every)
				defer tick.Stop()
				for g := lifecycle.Generation(1); ; g++ {
					_ = s.Offer(stable(g))
					select {
					case <-over:
						done <- g
						return
					case <-tick.C:
					}
				}
			}()
			took := make([]time.Duration, 0, 1<<20)
			for i := uint64(0); b.Loop(); i++ {
				from := time.Now()
				lease := s.Enter(i)
				lease.Policy.call(i)
				lease.Leave()
				if d := time.Since(from); len(took) < cap(took) {
					took = append(took, d)
				} else {
					took[i%uint64(cap(took))] = d
				}
			}
			close(over)
			swaps := <-done
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(took[len(took)*999/1000].Nanoseconds()), "p99.9-ns")
			b.ReportMetric(float64(swaps), "swaps")
		})
	}
}
