package stock

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// testDrain drains one of two replicas under load, and then the other one: no request fails, no stream is cut, and
// every text is what an engine answers by itself.
func testDrain(t *testing.T, f *fleet) {
	l := f.startLoad(t, true)
	for _, r := range f.file.Replicas {
		l.await(t, 6)
		f.command("drain", r.ID, "--wait", "--timeout", harness.Patience.String())
		l.await(t, 6) // at the other replica
		f.command("drain", "--undo", r.ID)
		f.AwaitServing(r.ID)
	}
	l.requireAnswers(t)
}

// testDeath kills an engine under a load of streams, as testDrain drains its replica.
func testDeath(t *testing.T, f *fleet) {
	l := f.startLoad(t, false)
	l.await(t, 6)
	f.engines[0].Kill()
	l.await(t, 12)
	l.requireAnswers(t)
}

// load sends streamed and plain requests through Envoy and compares every text.
type load struct {
	f        *fleet
	bodies   []completion
	want     []string // texts
	stop     chan struct{}
	workers  sync.WaitGroup
	answered atomic.Int64

	mu          sync.Mutex
	failed, cut int
	errs        []error // the first ones
}

// startLoad starts a load of streams of completions and chats, and of whole answers if whole. An engine is asked first
// for the texts.
func (f *fleet) startLoad(t *testing.T, whole bool) *load {
	t.Helper()
	l := &load{f: f, stop: make(chan struct{})}
	for i := range 12 {
		c := completion{prompt: prompt(100+i, []int{60, 400, 2000}[i%3]), output: 150 + 50*(i%4), chat: i%2 > 0}
		l.bodies, l.want = append(l.bodies, c), append(l.want, f.engines[0].text(t, c))
	}
	for w := range 6 {
		l.workers.Go(func() {
			for n := w; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				if err := l.send(n%len(l.bodies), !whole || n%5 != 0); err != nil {
					l.record(n, err)
				}
				l.answered.Add(1)
			}
		})
	}
	f.T.Cleanup(l.end)
	return l
}

// requireAnswers ends the load, in which all requests must have been answered rightly.
func (l *load) requireAnswers(t *testing.T) {
	t.Helper()
	l.end()
	harness.Tally(l.f.T, l.f.migrations())
	t.Logf("%d requests: %d failed, %d cut", l.answered.Load(), l.failed, l.cut)
	for _, err := range l.errs {
		t.Error(err)
	}
}

// end ends the load once every request in progress is answered.
func (l *load) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.workers.Wait()
}

// await waits until so many more requests are answered.
func (l *load) await(t *testing.T, requests int64) {
	t.Helper()
	goal := l.answered.Load() + requests
	testkit.WaitFor(t, fmt.Sprintf("%d more answers", requests), func() bool { return l.answered.Load() >= goal })
}

// send sends one request and compares the text.
func (l *load) send(i int, stream bool) error {
	ask := l.f.plain
	if stream {
		ask = l.f.stream
	}
	text, err := ask(l.bodies[i])
	if err == nil && text != l.want[i] {
		err = fmt.Errorf("another text: %.200q, want %.200q", text, l.want[i])
	}
	return err
}

// record counts a request that failed.
func (l *load) record(n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, harness.ErrCut) {
		l.cut++
	} else {
		l.failed++
	}
	if len(l.errs) < 5 {
		l.errs = append(l.errs, fmt.Errorf("request %d: %w", n, err))
	}
}
