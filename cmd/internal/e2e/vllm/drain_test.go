package vllm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// testDrain drains one of two replicas under load, and then the other one: no request fails, no stream is cut, and
// every text is what an engine answers by itself.
func testDrain(t *testing.T, f *fleet) {
	var bodies []completion
	for i := range 12 {
		bodies = append(bodies, completion{prompt: prompt(100+i, []int{60, 400, 2000}[i%3]), output: 150 + 50*(i%4)})
	}
	want := make([]string, len(bodies))
	for i, c := range bodies {
		want[i] = f.engines[0].text(t, c)
	}
	l := &load{f: f, bodies: bodies, want: want, stop: make(chan struct{})}
	l.start(6)
	for _, r := range f.file.Replicas {
		l.await(t, 6)
		f.command("drain", r.ID, "--wait", "--timeout", harness.Patience.String())
		l.await(t, 6) // at the other replica
		f.command("drain", "--undo", r.ID)
		f.awaitServing(r.ID)
	}
	l.end()
	f.tally()
	t.Logf("%d requests: %d failed, %d cut", l.answered.Load(), l.failed, l.cut)
	for _, err := range l.errs {
		t.Error(err)
	}
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

// start starts so many workers.
func (l *load) start(workers int) {
	for w := range workers {
		l.workers.Go(func() {
			for n := w; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				if err := l.send(n%len(l.bodies), n%4 != 0); err != nil {
					l.record(n, err)
				}
				l.answered.Add(1)
			}
		})
	}
	l.f.T.Cleanup(l.end)
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
func (l *load) send(i int, stream bool) (err error) {
	var text string
	if stream {
		text, err = l.f.stream(l.bodies[i].body(map[string]any{"stream": true}), nil)
	} else {
		text, err = l.plain(l.bodies[i])
	}
	if err == nil && text != l.want[i] {
		err = fmt.Errorf("another text: %.200q, want %.200q", text, l.want[i])
	}
	return err
}

// plain sends a request that is not streamed and returns its text.
func (l *load) plain(c completion) (string, error) {
	status, body, err := l.f.ask("/v1/completions", c.body(nil))
	if err == nil && status != 200 {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	return gjson.GetBytes(body, "choices.0.text").Str, err
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
