package swap

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/policies/testkit"
	"github.com/cascadeinfer/cascade/wasm/promotion"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakePolicy answers a number with a number, and returns which generation answered.
type fakePolicy interface {
	call(x uint64) (answer uint64, by lifecycle.Generation)
}

// right returns the correct answer, native or not.
func right(x uint64) uint64 { return x*x + 1 }

type native struct{}

func (native) call(x uint64) (uint64, lifecycle.Generation) { return right(x), lifecycle.Native }

// fakeModule answers like native. It traps in every trap-th call, which native then answers.
// It detects calls after it was closed.
type fakeModule struct {
	g      lifecycle.Generation
	trap   uint64 // 0 for never
	calls  atomic.Uint64
	fault  func()
	state  atomic.Int32 // 1 once it is closed
	misuse *atomic.Uint64
	inside atomic.Int64
}

func (m *fakeModule) call(x uint64) (uint64, lifecycle.Generation) {
	m.inside.Add(1)
	defer m.inside.Add(-1)
	if m.state.Load() != 0 {
		m.misuse.Add(1)
	}
	if n := m.calls.Add(1); m.trap > 0 && n%m.trap == 0 {
		m.fault()
		answer, _ := native{}.call(x)
		return answer, m.g
	}
	answer := right(x)
	if m.state.Load() != 0 {
		m.misuse.Add(1)
	}
	return answer, m.g
}

func (m *fakeModule) close() error {
	if m.state.Swap(1) != 0 || m.inside.Load() != 0 {
		m.misuse.Add(1)
	}
	return nil
}

// loader makes fake modules by its functions. A nil function succeeds.
type loader struct {
	trap    func(lifecycle.Generation) uint64
	verify  func(context.Context, Candidate) error
	compile func(context.Context, Candidate) error
	warm    func(context.Context) error
	replay  func(context.Context) (lifecycle.Figures, error)
	logger  *slog.Logger // for its modules

	mu       sync.Mutex
	made     []*fakeModule
	building atomic.Int32
	misuse   atomic.Uint64
}

func (l *loader) Verify(ctx context.Context, c Candidate) error {
	if l.verify != nil {
		return l.verify(ctx, c)
	}
	return nil
}

func (l *loader) Compile(ctx context.Context, c Candidate, fault func()) (Module[fakePolicy], error) {
	if l.building.Add(1) != 1 {
		l.misuse.Add(1)
	}
	defer l.building.Add(-1)
	if l.compile != nil {
		if err := l.compile(ctx, c); err != nil {
			return Module[fakePolicy]{}, err
		}
	}
	m := &fakeModule{g: c.Generation, fault: fault, misuse: &l.misuse}
	if l.trap != nil {
		m.trap = l.trap(c.Generation)
	}
	l.mu.Lock()
	l.made = append(l.made, m)
	l.mu.Unlock()
	return Module[fakePolicy]{Policy: m, Warm: l.warm, Replay: l.replay, Close: m.close, Logger: l.logger}, nil
}

// closed returns how many modules were made, and how many of them are closed.
func (l *loader) closed() (made, closed int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.made {
		closed += int(m.state.Load())
	}
	return len(l.made), closed
}

// newSlot returns a running slot of fake modules.
func newSlot(t testing.TB, c promotion.Config, l *loader) *Slot[fakePolicy] {
	s := makeSlot(c, l, nil)
	testkit.Run(t, s.Run)
	return s
}

func makeSlot(c promotion.Config, l *loader, log *slog.Logger) *Slot[fakePolicy] {
	if c.Kind == "" {
		c.Kind = lifecycle.BidSelect
	}
	return testkit.Must(New(Config[fakePolicy]{Machine: c, Native: native{}, Loader: l, Logger: log}))
}

func offer(g lifecycle.Generation, goal lifecycle.Goal) Candidate {
	return Candidate{Offer: promotion.Offer{Generation: g, Goal: goal, Permille: 500}, Module: []byte{byte(g)}}
}

func stable(g lifecycle.Generation) Candidate {
	c := offer(g, lifecycle.ToActive)
	c.Stable = true
	return c
}

// statusOf returns the status of a generation.
func statusOf(s *Slot[fakePolicy], g lifecycle.Generation) lifecycle.Status {
	for _, l := range s.Status().Modules {
		if l.Generation == g {
			return l
		}
	}
	return lifecycle.Status{}
}

var errTest = errors.New("as the test wants it")

const second = time.Second
