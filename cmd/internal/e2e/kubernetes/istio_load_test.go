package kubernetes

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// own stands for the server of the gateway's owner, which sets ownHeader in its answers.
const (
	own       = "own"
	ownHeader = "x-own"
)

// sizes are those of the requests' bodies. The estimates of their lengths are far from the boundaries of the test.
var sizes = [...]int{400, 8000, 60_000}

// servers says who serves the requests of each size: own, or a stage.
type servers [len(sizes)]string

// attachedWorkers is how many workers send to the listener that is attached, each on connections of its own.
const attachedWorkers = 3

// settled is how many requests of each of these workers, one after the other, must be served as expected before a step is
// complete.
const settled = 30

// load sends requests to the two listeners of a gateway without a pause, and judges every answer.
type load struct {
	t testing.TB

	mu       sync.Mutex
	former   servers // a request may still be served so; equal to now once a step is complete
	now      servers
	streaks  [attachedWorkers]int // requests of each worker served as by now, since the last one that was not
	began    time.Time
	first    time.Duration // from began to the first answer that only the new routes give
	counts   counts
	problems []string // requests that failed, or were served by others
	rows     []string
}

// counts are the answers of one step.
type counts struct{ sent, failed, other, own, s0, s1 int }

// startLoad starts workers for both listeners, which end with the test.
func startLoad(t testing.TB, attached, other string) (l *load, stop func()) {
	t.Helper()
	l = &load{t: t, former: servers{own, own, own}, now: servers{own, own, own}}
	done := make(chan struct{})
	var group sync.WaitGroup
	for i := range attachedWorkers + 1 {
		url := attached
		if i == attachedWorkers {
			url = other
		}
		group.Go(func() {
			client := harness.NewHTTP()
			defer client.CloseIdleConnections()
			client.Timeout = testkit.WaitTimeout()
			for n := i; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				size := n % len(sizes)
				by, err := send(client, url, harness.Prompt(1+n%50, sizes[size], 2))
				l.judge(i, size, by, err)
			}
		})
	}
	stop = sync.OnceFunc(func() { close(done); group.Wait() })
	t.Cleanup(stop)
	return l, stop
}

// send sends a request with a forged length and returns who has served it.
func send(client *http.Client, url string, body []byte) (by string, err error) {
	req, err := http.NewRequest(http.MethodPost, url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("content-type", "application/json")
	req.Header.Set(length.TokensHeader, "1") // no client may choose its stage
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s, %v: %.200s: %w", resp.Status, resp.Header, text, err)
	}
	if resp.Header.Get(ownHeader) != "" {
		return own, nil
	}
	return resp.Header.Get(length.StageHeader), nil
}

// judge counts an answer to a worker.
func (l *load) judge(worker, size int, by string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	attached := worker < attachedWorkers
	l.counts.sent++
	switch {
	case err != nil:
		l.counts.failed++
		l.addProblem("a request of %d bytes failed: %v", sizes[size], err)
	case !attached:
		l.counts.other++
		if by != own {
			l.addProblem("a request to the other listener was served by %q", by)
		}
		return
	case by == own:
		l.counts.own++
	case by == "s0":
		l.counts.s0++
	case by == "s1":
		l.counts.s1++
	}
	switch {
	case err != nil || !attached:
	case by == l.now[size]:
		l.streaks[worker]++
		if l.first == 0 && by != l.former[size] {
			l.first = time.Since(l.began)
		}
		return
	case by != l.former[size]:
		l.addProblem("a request of %d bytes was served by %q, want %q, or %q as before", sizes[size], by, l.now[size], l.former[size])
	}
	if attached {
		l.streaks[worker] = 0
	}
}

// addProblem records what is wrong with an answer; l.mu is held.
func (l *load) addProblem(format string, args ...any) {
	if len(l.problems) < 10 {
		l.problems = append(l.problems, fmt.Sprintf(format, args...))
	}
}

// step takes a step and waits until all requests are served as it wants; from then on, no request may be served as
// before. It returns when as many more have been served as it wants.
func (l *load) step(name string, want servers, do func()) {
	l.t.Helper()
	l.mu.Lock()
	l.former, l.now, l.streaks, l.counts = l.now, want, [attachedWorkers]int{}, counts{}
	l.began, l.first = time.Now(), 0
	l.mu.Unlock()
	do()
	wait := func(what string, n int) {
		l.t.Helper()
		testkit.WaitFor(l.t, name+": "+what, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return slices.Min(l.streaks[:]) >= n || len(l.problems) > 0
		})
	}
	wait("all requests are served as wanted", settled)
	l.mu.Lock()
	took := time.Since(l.began)
	l.former = want
	l.mu.Unlock()
	wait("all further requests are, too", 2*settled)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts
	l.rows = append(l.rows, fmt.Sprintf("%-24s %9d %7d %6d %6d %6d %6d %8.2f %10.2f", name, c.sent, c.failed, c.other, c.own, c.s0, c.s1, l.first.Seconds(), took.Seconds()))
	if len(l.problems) > 0 {
		l.t.Fatalf("%s:\n%s", name, strings.Join(l.problems, "\n"))
	}
}

// report logs the table of all steps.
func (l *load) report() {
	l.t.Helper()
	l.t.Logf("requests by server\n%-24s %9s %7s %6s %6s %6s %6s %8s %10s\n%s", "step", "requests", "failed", "other", own, "s0", "s1", "first, s", "settled, s", strings.Join(l.rows, "\n"))
}
