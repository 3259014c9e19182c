// Package profiler measures a live inference engine for a cost profile: it sends the requests of a
// profiling.Grid to an OpenAI endpoint and records when each token comes.
//
// It is a closed-loop client: in each cell the number of requests in flight is constant; when one ends, the next
// is sent. Package profiling decides what is measured, when a cell is steady, and what follows from it.
package profiler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/engine/profiling"
	"github.com/cascadeinfer/cascade/policies"
)

// API is a generating endpoint.
type API string

// The endpoints.
const (
	Completions API = "completions"
	Chat        API = "chat"
)

// Limits of a measurement.
const (
	// requestTimeout bounds one request; connectTimeout one that asks for the model or the metrics.
	requestTimeout = 10 * time.Minute
	connectTimeout = 10 * time.Second
	// maxFailures is how many requests in a row may fail before a cell ends with an error.
	maxFailures = 5
	// maxAnswer bounds the answers to GET requests.
	maxAnswer = 16 << 20
	// clockTick is the time between two looks at the clock. It is well above the resolution of timers, and well below
	// the time of an answer.
	clockTick = 10 * time.Millisecond
)

// Config configures a Profiler. Endpoint, Model, Grid and Seconds are required.
type Config struct {
	Endpoint string // base URL without /v1, such as http://127.0.0.1:8000
	Model    string
	API      API         // Completions by default
	Header   http.Header // added to every request
	Grid     profiling.Grid
	// Seconds bounds the time of a cell, which ends earlier when it is steady. A cell goes on until as many
	// requests as its batch holds have ended.
	Seconds float64
	// Transport sends the requests; nil is one with as many connections as the largest batch.
	Transport http.RoundTripper
	// After is time.After by default. By how much it is late says whether this process gets a CPU.
	After  func(time.Duration) <-chan time.Time
	Logger *slog.Logger // nil discards
}

// Profiler measures one endpoint.
type Profiler struct {
	cfg    Config
	client *http.Client
	// run makes the words others in every run: the engine's prefix cache may have the prompts of an earlier one.
	run uint64

	// Set by WarmUp.
	fields string // optional fields of a request that the endpoint accepts

	mu    sync.Mutex
	rng   *rand.Rand // of the texts
	words float64    // sent, and
	seen  float64    // the prompt tokens that the endpoint counted in them
}

// New validates the Config and sends nothing.
func New(c Config) (*Profiler, error) {
	c.API = cmp.Or(c.API, Completions)
	if c.After == nil {
		c.After = time.After
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case c.Endpoint == "" || c.Model == "":
		return nil, errors.New("profiler: the endpoint and the model are required")
	case c.API != Completions && c.API != Chat:
		return nil, fmt.Errorf("profiler: the API is %q; it must be %q or %q", c.API, Completions, Chat)
	case !(c.Seconds > 0):
		return nil, fmt.Errorf("profiler: the time of a cell is %v s; it must be positive", c.Seconds)
	}
	if err := c.Grid.Validate(); err != nil {
		return nil, fmt.Errorf("profiler: %w", err)
	}
	if c.Transport == nil {
		c.Transport = &http.Transport{
			MaxConnsPerHost: c.Grid.MaxBatch + 1, MaxIdleConns: c.Grid.MaxBatch + 1, MaxIdleConnsPerHost: c.Grid.MaxBatch + 1,
			DisableCompression: true, WriteBufferSize: 64 << 10,
		}
	}
	return &Profiler{cfg: c, client: &http.Client{Transport: c.Transport}, run: uint64(time.Now().UnixNano()), rng: rand.New(rand.NewPCG(c.Grid.Seed, 2))}, nil
}

// Run measures a cell. When ctx ends, it returns its cause, and the cell is not measured.
func (p *Profiler) Run(ctx context.Context, cell profiling.Cell) (profiling.Log, error) {
	// The requests of the cell before were cut, and the engine may still be in an iteration with them.
	if _, err := p.unmeasured(ctx, 2); err != nil {
		return profiling.Log{}, err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c := &cellRun{profiler: p, log: profiling.Log{Cell: cell}, began: time.Now(), stop: stop}
	var slots sync.WaitGroup
	slots.Go(func() { c.watchClock(ctx) })
	for slot := range cell.Batch {
		// The lengths of a slot do not depend on which slot is faster.
		rng := rand.New(rand.NewPCG(p.cfg.Grid.Seed, uint64(cell.Low)<<32|uint64(cell.Batch)<<16|uint64(slot)))
		slots.Go(func() {
			for ctx.Err() == nil {
				c.add(p.send(ctx, c, slot, rng))
			}
		})
	}
	slots.Wait()
	if err := context.Cause(ctx); !errors.Is(err, errMeasured) {
		return profiling.Log{}, err
	}
	c.log.Seconds = c.seconds(time.Now())
	// Requests that end at one time come in any order, and the order decides which are held out of a fit.
	slices.SortFunc(c.log.Requests, func(a, b profiling.Request) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Slot, b.Slot))
	})
	c.log.SetLoads()
	return c.log, nil
}

// errMeasured ends the requests of a cell that has been measured.
var errMeasured = errors.New("the cell has been measured")

// cellRun is a cell while it is measured.
type cellRun struct {
	profiler *Profiler
	began    time.Time
	stop     context.CancelCauseFunc

	mu        sync.Mutex
	log       profiling.Log
	latencies []float64 // normalised, in the order of the ends
	failures  int       // in a row
}

// seconds returns a time since the cell began, in whole microseconds.
func (c *cellRun) seconds(t time.Time) float64 { return float64(t.Sub(c.began).Microseconds()) * 1e-6 }

// watchClock measures how late this process runs until ctx ends.
func (c *cellRun) watchClock(ctx context.Context) {
	var late, total time.Duration
	for from := time.Now(); ; {
		select {
		case <-ctx.Done():
			c.log.Late = late.Seconds() / max(total, clockTick).Seconds()
			return
		case <-c.profiler.cfg.After(clockTick):
		}
		now := time.Now()
		late, total, from = late+now.Sub(from)-clockTick, total+now.Sub(from), now
	}
}

// add adds a request that ended, and ends the cell when enough have.
func (c *cellRun) add(r profiling.Request, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log.Requests = append(c.log.Requests, r)
	if err != nil {
		if c.failures++; c.failures == 1 {
			c.log.Failure = err.Error()
		}
		c.log.Failed++
		if c.failures >= maxFailures {
			c.stop(fmt.Errorf("%d requests in a row failed; the last: %w", c.failures, err))
		}
		return
	}
	if r.Cut {
		return
	}
	c.failures = 0
	c.latencies = append(c.latencies, r.Normalised())
	late := len(c.latencies) >= max(3, c.log.Batch) && r.End >= c.profiler.cfg.Seconds
	if late || profiling.Steady(c.latencies, c.log.Batch) {
		c.stop(errMeasured)
	}
}

// lengths draws the next request of a slot: its prompt's tokens and words, and its output.
func (p *Profiler) lengths(cell profiling.Cell, slot int, rng *rand.Rand) (prompt, output policies.Tokens, words int, text *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	prompt, output = cell.Prompt(slot, rng), p.cfg.Grid.OutputLength(rng)
	words = max(1, int(float64(prompt)/p.perWord()))
	return prompt, output, words, rand.New(rand.NewPCG(p.rng.Uint64(), p.run))
}

// perWord returns the tokens of a word, from all prompts so far.
func (p *Profiler) perWord() float64 {
	if p.seen == 0 {
		return 1
	}
	return p.seen / p.words
}

// count counts a prompt for perWord.
func (p *Profiler) count(words int, tokens policies.Tokens) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.words, p.seen = p.words+float64(words), p.seen+float64(tokens)
}
