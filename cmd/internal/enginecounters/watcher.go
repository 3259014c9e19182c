// Package enginecounters reads the counters of engines while requests are replayed: how much of the
// prompts they found in their prefix caches, and how evenly work was spread over them.
//
//	w, err := enginecounters.New(cfg)
//	go w.Run(ctx)          // until the replay ends
//	total, err := w.Total() // after Run
//
// The metrics are those of vLLM, which the emulator has, too.
package enginecounters

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/internal/atomicfile"
	"github.com/cascadeinfer/cascade/migrator/dialect"
)

const (
	sampleEvery = time.Second
	readTimeout = 5 * time.Second
	maxAnswer   = 4 << 20 // bytes
)

// Config configures a Watcher. Engines is required.
type Config struct {
	// Engines are base URLs without /v1.
	Engines []string
	// Speed is the engines' speed relative to real time; 0 means 1.
	Speed float64
	// Arrivals is how long after Run began the last request is due, in wall time: later the load is only
	// what is left of it, and its spread says nothing. 0 means that the spread counts until Run ends.
	Arrivals time.Duration
	// Stages returns the stage of each engine, by its index: equal numbers are one stage, numbers below 0
	// none. Nil: all are in one. It is called from the goroutine of Run.
	Stages func() []int
}

// Total is what the counters of all engines together have grown by.
type Total struct {
	Queries int64 // prompt tokens that were looked up in prefix caches
	Hits    int64 // of them, those that were found
	// LoadCV is that of a replay.BalanceMeter; −1 if it is not known.
	LoadCV float64
}

// Watcher reads counters. It is used once.
type Watcher struct {
	cfg    Config
	client http.Client
	// Written by Run only.
	last  []counters
	total Total
	meter replay.BalanceMeter
	err   error // of the last reading
}

// counters are those of one engine, since it started.
type counters struct{ prompt, queries, hits, generated float64 }

// computed returns the prompt tokens that were computed. Without a prefix cache an engine looks nothing up.
func (c counters) computed() float64 {
	if c.queries > 0 {
		return c.queries - c.hits
	}
	return c.prompt
}

// New returns a Watcher, and starts nothing.
func New(cfg Config) (*Watcher, error) {
	if len(cfg.Engines) == 0 {
		return nil, errors.New("engine counters: no engine is named")
	}
	if cfg.Speed == 0 {
		cfg.Speed = 1
	}
	return &Watcher{cfg: cfg, client: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1}}}, nil
}

// Run reads the counters at once, every second, and when ctx ends. It may be called once.
func (w *Watcher) Run(ctx context.Context) {
	defer w.client.CloseIdleConnections()
	began := time.Now()
	w.sample(context.WithoutCancel(ctx), 0) // what is counted later is compared with it
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			w.sample(ctx, time.Since(began))
		case <-ctx.Done():
			w.sample(context.WithoutCancel(ctx), time.Since(began))
			return
		}
	}
}

// sample reads the counters of all engines.
func (w *Watcher) sample(ctx context.Context, elapsed time.Duration) {
	now := make([]counters, len(w.cfg.Engines))
	g, gctx := errgroup.WithContext(ctx)
	for i, engine := range w.cfg.Engines {
		g.Go(func() (err error) {
			now[i], err = w.read(gctx, engine)
			return err
		})
	}
	err := g.Wait()
	if ctx.Err() != nil {
		return // Run reads again
	}
	if w.err = err; err != nil {
		return
	}
	for i, was := range w.last {
		w.total.Queries += grown(was.queries, now[i].queries)
		w.total.Hits += grown(was.hits, now[i].hits)
	}
	w.last = now
	if w.cfg.Arrivals > 0 && elapsed > w.cfg.Arrivals {
		return
	}
	work, stages := make([]float64, len(now)), make([]int, len(now))
	for i, c := range now {
		work[i] = replay.EngineWork(c.computed(), c.generated)
	}
	if w.cfg.Stages != nil {
		copy(stages, w.cfg.Stages())
	}
	w.meter.Sample(elapsed.Seconds()*w.cfg.Speed, work, stages)
}

// grown returns by how much a counter has grown. One that is smaller is of an engine that has begun again.
func grown(was, now float64) int64 {
	if now < was {
		was = 0
	}
	return int64(now - was)
}

// Total returns how the counters have grown since Run began. It is called after Run. The error is that of
// the last reading: counters that cannot be read to the end say nothing.
func (w *Watcher) Total() (Total, error) {
	if w.err != nil || w.last == nil {
		return Total{}, fmt.Errorf("engine counters: %w", w.err)
	}
	t := w.total
	t.LoadCV = -1
	if cv, ok := w.meter.CV(); ok {
		t.LoadCV = cv
	}
	return t, nil
}

// read reads the counters of one engine.
func (w *Watcher) read(ctx context.Context, engine string) (counters, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, engine+"/metrics", nil)
	if err != nil {
		return counters{}, err
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return counters{}, err
	}
	defer resp.Body.Close()
	text, err := atomicfile.ReadAll(resp.Body, maxAnswer)
	switch {
	case err != nil:
		return counters{}, fmt.Errorf("%s/metrics: %w", engine, err)
	case resp.StatusCode != http.StatusOK:
		return counters{}, fmt.Errorf("%s/metrics: %s", engine, resp.Status)
	}
	c, ok := decode(text)
	if !ok {
		return counters{}, fmt.Errorf("%s/metrics: it has no counter vllm:generation_tokens_total", engine)
	}
	return c, nil
}

// decode adds up the counters of the engines behind one address; false if they are not there.
func decode(text []byte) (c counters, ok bool) {
	const prompt, generated = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
	const queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
	samples := dialect.ReadSamples(text, func(name string) bool {
		return name == prompt || name == generated || name == queries || name == hits
	})
	sum := func(name string) float64 { return samples.Sum(name, 1<<53) }
	return counters{prompt: sum(prompt), queries: sum(queries), hits: sum(hits), generated: sum(generated)}, len(samples[generated]) > 0
}
