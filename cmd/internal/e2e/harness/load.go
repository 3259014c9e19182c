package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// LoadConfig configures a Load.
type LoadConfig struct {
	Workers int
	// Body returns the next request of a worker. Its bodies repeat, so that the oracle knows most answers.
	Body func(worker int, rng *rand.Rand) []byte
	// Streamed reports whether the n-th request of a worker is streamed. nil streams every third one.
	Streamed func(n int) bool
	// Check checks the head of an answer to a body. nil checks nothing.
	Check func(sent []byte, resp *http.Response) error
}

// Load is a load of plain and streamed requests. It checks that each is answered completely.
type Load struct {
	Stop func() // ends the load once every request in progress is answered

	c       *Clients
	cfg     LoadConfig
	oracle  *Oracle
	began   []atomic.Int64 // start time of each worker's present request; in ns since the epoch
	ended   atomic.Int64   // requests, answered or failed
	streams atomic.Int64   // of ended
	cut     atomic.Int64

	mu     sync.Mutex
	failed []error
	limit  time.Time        // requests that began before it may be cut
	may    func(error) bool // in ways for which it returns true
}

// NewLoad starts a load at the data plane, until the end of the test at the latest.
func (c *Clients) NewLoad(cfg LoadConfig) *Load {
	c.T.Helper()
	if cfg.Streamed == nil {
		cfg.Streamed = func(n int) bool { return n%3 == 0 }
	}
	l := &Load{c: c, cfg: cfg, oracle: c.Oracle(), began: make([]atomic.Int64, cfg.Workers)}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for i := range cfg.Workers {
		wg.Go(func() {
			rng := random(i)
			for n := i; ctx.Err() == nil; n++ {
				l.began[i].Store(time.Now().UnixNano())
				l.Send(cfg.Body(i, rng), cfg.Streamed(n))
			}
		})
	}
	l.Stop = sync.OnceFunc(func() {
		cancel()
		answered := make(chan struct{})
		go func() {
			wg.Wait()
			close(answered)
		}()
		testkit.WaitForEvent(c.T, "every request of the load is answered", answered)
	})
	c.T.Cleanup(l.Stop)
	return l
}

// Send sends one request as a part of the load.
func (l *Load) Send(body []byte, stream bool) {
	began := time.Now()
	err := l.send(body, stream)
	l.ended.Add(1)
	if stream {
		l.streams.Add(1)
	}
	if err == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if began.Before(l.limit) && l.may(err) {
		l.cut.Add(1)
		return
	}
	l.failed = append(l.failed, fmt.Errorf("%d bytes, streamed %v: %w", len(body), stream, err))
}

// send sends one request and checks the answer.
func (l *Load) send(body []byte, stream bool) error {
	want, err := l.oracle.Text(body)
	if err != nil {
		return err
	}
	sent := body
	if stream {
		sent = WithStream(body)
	}
	resp, err := l.c.HTTP.Post(l.c.DataPlane+"/v1/completions", "application/json", bytes.NewReader(sent))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return fmt.Errorf("%s, %v: %s", resp.Status, resp.Header, text)
	}
	if l.cfg.Check != nil {
		if err := l.cfg.Check(sent, resp); err != nil {
			return err
		}
	}
	if stream {
		var e Events
		return e.Check(e.Read(resp.Body, nil), want)
	}
	text, err := io.ReadAll(resp.Body)
	if answer := gjson.GetBytes(text, "choices.0.text").Str; err == nil && answer != want {
		err = errors.New(difference(answer, want))
	}
	return err
}

// KillDuring kills a component of the fleet. It may cut the requests in progress in a way that may allows; no other
// request may fail.
func (l *Load) KillDuring(kill func(), may func(error) bool) {
	l.mu.Lock()
	l.limit, l.may = time.Now().Add(time.Hour), may
	l.mu.Unlock()
	kill()
	l.mu.Lock()
	l.limit = time.Now()
	l.mu.Unlock()
}

// Report fails the test if a request failed.
func (l *Load) Report() {
	l.c.T.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.c.T.Logf("%d requests, %d of them streams: %d failed, %d were cut with their replica", l.ended.Load(), l.streams.Load(), len(l.failed), l.cut.Load())
	if len(l.failed) > 0 || l.ended.Load() == 0 {
		var first strings.Builder
		for _, err := range l.failed[:min(5, len(l.failed))] {
			fmt.Fprintln(&first, err)
		}
		l.c.T.Errorf("%d of %d requests failed; the first:\n%s", len(l.failed), l.ended.Load(), &first)
	}
}

// Counts returns how many requests have ended so far, answered or failed, and how many of them were streams.
func (l *Load) Counts() (requests, streams int64) { return l.ended.Load(), l.streams.Load() }

// Failures returns the errors of the requests that failed so far.
func (l *Load) Failures() []error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failed)
}

// WaitForRequests waits until n more requests have ended, answered or failed.
func (l *Load) WaitForRequests(n int64) {
	l.c.T.Helper()
	goal := l.ended.Load() + n
	l.c.WaitFor(fmt.Sprintf("%d more requests", n), func() bool { return l.ended.Load() >= goal })
}

// WaitForAll waits until all requests in progress have ended, answered or failed.
func (l *Load) WaitForAll() {
	l.c.T.Helper()
	now := time.Now().UnixNano()
	for i := range l.began {
		l.c.WaitFor("every worker sends another request", func() bool { return l.began[i].Load() > now })
	}
}
