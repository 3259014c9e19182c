package profiler

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"

	"github.com/cascadeinfer/cascade/engine/emulator"
	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// serveEngine runs an emulated engine inside a synctest bubble, and returns a Config for it.
func serveEngine(t *testing.T, c emulator.Config) (Config, func()) {
	t.Helper()
	c.Model = "m"
	e := testkit.Must(emulator.New(c))
	stop := testkit.Run(t, e.Run)
	return Config{Endpoint: "http://engine", Model: "m", Transport: handlerTransport{e.Handler()}}, func() {
		stop()
		synctest.Wait()
	}
}

// handlerTransport passes requests to a handler, without a connection.
type handlerTransport struct{ http.Handler }

// RoundTrip implements http.RoundTripper.
func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	read, write := io.Pipe()
	w := &pipeWriter{write: write, header: http.Header{}, answered: make(chan int, 1)}
	go func() {
		defer cancel()
		h.ServeHTTP(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		write.Close()
	}()
	select {
	case code := <-w.answered:
		return &http.Response{StatusCode: code, Header: w.header, Body: readCanceler{read, cancel}, Request: r}, nil
	case <-ctx.Done():
		read.Close()
		return nil, context.Cause(ctx)
	}
}

// pipeWriter is the handler's side of an answer.
type pipeWriter struct {
	write    *io.PipeWriter
	header   http.Header
	answered chan int
	once     sync.Once
}

func (w *pipeWriter) Header() http.Header  { return w.header }
func (w *pipeWriter) WriteHeader(code int) { w.once.Do(func() { w.answered <- code }) }
func (w *pipeWriter) Flush()               {}
func (w *pipeWriter) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.write.Write(b)
}

// readCanceler ends the handler's request when its answer is closed.
type readCanceler struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (c readCanceler) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}

func readAll(r *http.Request) string {
	if r.Body == nil {
		return ""
	}
	return string(testkit.Must(io.ReadAll(r.Body)))
}

// serverLog logs what an engine's server does.
type serverLog struct {
	handler http.Handler

	mu       sync.Mutex
	requests []*served
}

// served is one request. Times are seconds since 2000, when synthetic time begins.
type served struct {
	log        *serverLog
	start, end float64
	tokens     []float64
	prompt     float64
	complete   bool
	http.ResponseWriter
}

func now() float64 { return time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Seconds() }

func (s *serverLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := readAll(r)
	r.Body = io.NopCloser(strings.NewReader(body))
	// A word is a token of the emulated model. Requests that are sent at one time arrive in the order of their
	// lengths, in every run.
	words := len(strings.Fields(gjson.Get(body, "prompt").Str))
	time.Sleep(time.Duration(words))
	q := &served{log: s, start: now(), prompt: float64(words), ResponseWriter: w}
	s.mu.Lock()
	s.requests = append(s.requests, q)
	s.mu.Unlock()
	s.handler.ServeHTTP(q, r)
	s.mu.Lock()
	q.end = now()
	s.mu.Unlock()
}

func (q *served) Flush() {}

func (q *served) Write(b []byte) (int, error) {
	q.log.mu.Lock()
	for range bytes.Count(b, []byte(`"choices":[{`)) {
		q.tokens = append(q.tokens, now())
	}
	q.complete = q.complete || bytes.Contains(b, []byte(`"usage":{`))
	q.log.mu.Unlock()
	return q.ResponseWriter.Write(b)
}

// loads returns F_0 … F_4 and the normalised latency of every request that the client saw end, from the overlaps of
// its time with the times of each other request and token.
func (s *serverLog) loads(client profiling.Log) (features [][5]float64, latencies []float64) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	// A request that ends when the cell does may be cut by the client.
	ended := make(map[[2]int]bool)
	for _, r := range client.Requests {
		if !r.Cut {
			ended[[2]int{int(r.Prompt), int(r.Output)}] = true
		}
	}
	for _, r := range s.requests {
		if !r.complete || !ended[[2]int{int(r.prompt), len(r.tokens)}] {
			continue
		}
		overlap := func(from, to float64) float64 {
			return max(0, min(to, r.end)-max(from, r.start)) / (r.end - r.start)
		}
		f := [5]float64{1}
		for _, q := range s.requests {
			share := overlap(q.start, q.end)
			f[1] += share
			f[2] += share * q.prompt
			f[3] += share * q.prompt * q.prompt
			f[4] += share * q.prompt
			for _, at := range q.tokens {
				f[4] += overlap(at, q.end)
			}
		}
		features, latencies = append(features, f), append(latencies, (r.end-r.start)/float64(len(r.tokens)))
	}
	return features, latencies
}

// fitByDescent is non-negative least squares by coordinate descent.
func fitByDescent(features [][5]float64, latencies []float64) (c [5]float64) {
	var products [5][5]float64
	var targets [5]float64
	for i, f := range features {
		for j := range f {
			targets[j] += f[j] * latencies[i]
			for k := range f {
				products[j][k] += f[j] * f[k]
			}
		}
	}
	for range 2_000_000 {
		for k := range c {
			gradient := -targets[k]
			for j := range c {
				gradient += products[k][j] * c[j]
			}
			c[k] = max(0, c[k]-gradient/products[k][k])
		}
	}
	return c
}
