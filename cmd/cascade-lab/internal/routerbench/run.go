package routerbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/contestant"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/runstore"
	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/enginecounters"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// matrix is all runs on one trace.
type matrix struct {
	workload    workload
	contestants []contestant.Contestant
	rates       []float64
	seeds       int
	speed       float64
	replicas    int                  // emulated engines
	external    []contestant.Replica // engines that run already; none: emulated ones
	keepCaches  bool
	besideNiced bool
	model       config.Model
	tools       contestant.Tools
	dir         string
	again       repeat
	limit       time.Duration // no run begins that would end later; 0: none
	history     int           // earlier requests for Cascade's first plan; set by inputs
	log         *slog.Logger
	stderr      io.Writer
	stdout      io.Writer
}

// input is what one cell replays.
type input struct {
	contestant contestant.Contestant
	requests   []trace.Request
	history    []trace.Request
	slo        replay.SLO
	key        string
}

// run makes the runs that are missing, and writes what they show.
func (m *matrix) run(ctx context.Context) error {
	if err := os.MkdirAll(m.runsDir(), 0o755); err != nil {
		return err
	}
	cells := orderCells(m.names(), m.rates, m.seeds)
	inputs, err := m.inputs(cells)
	if err != nil {
		return err
	}
	stored, err := readRuns(m.runsDir(), cells)
	if err != nil {
		return err
	}
	arrivals := func(c cell) time.Duration {
		requests := inputs[c].requests
		return time.Duration(float64(requests[len(requests)-1].At) / m.speed)
	}
	remaining := remainingCells(cells, func(c cell) string { return inputs[c].key }, stored, m.again)
	for _, c := range remaining {
		delete(stored, c)
	}
	fmt.Fprintf(m.stderr, "%s: %d of %d runs are to be made at speed %g, about %s\n", m.workload.name, len(remaining), len(cells), m.speed, minutes(expectedTime(remaining, arrivals, stored)))
	began := time.Now()
	for i, c := range remaining {
		if next := expectedTime(remaining[i:i+1], arrivals, stored); m.limit > 0 && time.Since(began)+next > m.limit {
			fmt.Fprintf(m.stderr, "%d runs are left and do not fit into -limit %v; the same command makes them\n", len(remaining)-i, m.limit)
			break
		}
		fmt.Fprintf(m.stderr, "run %d of %d, about %s left: %s, %g requests/s, seed %d\n", i+1, len(remaining), minutes(expectedTime(remaining[i:], arrivals, stored)), c.Contestant, c.Rate, c.Seed)
		r, err := m.measure(ctx, c, inputs[c])
		if err != nil {
			return fmt.Errorf("%s, %g requests/s, seed %d: %w", c.Contestant, c.Rate, c.Seed, err)
		}
		m.announce(r)
		if err := writeRun(m.runsDir(), r); err != nil {
			return err
		}
		stored[c] = r
		if err := m.evidence(stored).write(m.dir); err != nil {
			return err
		}
	}
	e := m.evidence(stored)
	if err := e.write(m.dir); err != nil {
		return err
	}
	fmt.Fprintf(m.stderr, "tables.md, results.json and routers.svg are in %s\n", m.dir)
	return e.print(m.stdout)
}

// inputs returns what each cell replays.
func (m *matrix) inputs(cells []cell) (map[cell]input, error) {
	by := map[string]contestant.Contestant{}
	for _, c := range m.contestants {
		by[c.Name] = c
	}
	profile, err := config.LoadProfile(m.model.Profile, ".")
	if err != nil {
		return nil, fmt.Errorf("-profile: %w", err)
	}
	out := map[cell]input{}
	for _, c := range cells {
		in := input{contestant: by[c.Contestant]}
		if in.requests, err = m.workload.requestsOf(c.Seed, c.Rate); err != nil {
			return nil, err
		}
		if in.history, err = m.workload.historyOf(c.Rate); err != nil {
			return nil, err
		}
		engines := fmt.Sprint(m.replicas, " emulated")
		if len(m.external) > 0 {
			engines = fmt.Sprint(len(m.external), " external, caches kept ", m.keepCaches) // their ports differ from start to start
		}
		if in.key, err = runstore.OfJSON(in.requests, in.history, in.contestant.Settings, m.tools.Envoy != "", engines, m.model, profile, m.speed); err != nil {
			return nil, err
		}
		in.slo = replay.Alone(profile, in.requests)
		m.history = len(in.history)
		out[c] = in
	}
	return out, nil
}

// measure makes one run.
func (m *matrix) measure(ctx context.Context, c cell, in input) (r run, err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "routerbench-") // private, as block tables require, and its path is short
	if err != nil {
		return run{}, err
	}
	defer os.RemoveAll(dir)
	e := contestant.Engines{Model: m.model.Name, Context: m.model.Context, Profile: m.model.Profile, Speed: m.speed, Replicas: m.external}
	if e.History, err = writeHistory(dir, in.history); err != nil {
		return run{}, err
	}
	r = m.newRun(c, in)
	contest := func(ctx context.Context) error {
		router, err := in.contestant.New(m.tools, e, m.log)
		if err != nil {
			return err
		}
		return contestant.Use(ctx, router, func(ctx context.Context, url string) error {
			r.Result, err = m.replay(ctx, c, in, url, e.Replicas, func() []int { return contestant.StagesOf(router, len(e.Replicas)) })
			return err
		})
	}
	if len(m.external) > 0 {
		if !m.keepCaches {
			if err := resetCaches(ctx, m.external); err != nil {
				return run{}, err
			}
		}
		err = contest(ctx)
	} else {
		err = m.withEmulated(ctx, dir, &e, contest)
	}
	r.Elapsed = time.Since(began).Seconds()
	return r, err
}

// newRun returns the run of a cell, without its result.
func (m *matrix) newRun(c cell, in input) run {
	return run{cell: c, Key: in.key, Build: m.again.build, BesideNiced: m.besideNiced}
}

// withEmulated calls contest while new engines run, which it writes into e.
func (m *matrix) withEmulated(ctx context.Context, dir string, e *contestant.Engines, contest func(context.Context) error) error {
	engines, err := newEmulated(m.replicas, m.model, m.speed, dir, m.log)
	if err != nil {
		return err
	}
	e.Replicas = engines.replicas
	running, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(running)
	g.Go(func() error { return engines.run(gctx) })
	g.Go(func() error {
		defer stop()
		return contest(gctx)
	})
	if err := g.Wait(); !errors.Is(err, context.Canceled) || ctx.Err() != nil {
		return err
	}
	return nil
}

// replayConfig returns how the requests of a cell are replayed.
func (m *matrix) replayConfig(c cell, in input, url string) replay.Config {
	return replay.Config{Name: c.Contestant, Target: url, Model: m.model.Name, Requests: in.requests, Speed: m.speed, SLO: in.slo, BesideNiced: m.besideNiced}
}

// replay replays the requests of a cell on engines in stages.
func (m *matrix) replay(ctx context.Context, c cell, in input, url string, engines []contestant.Replica, stages func() []int) (replay.Result, error) {
	bar := progress.New(m.stderr, c.Contestant, len(in.requests))
	defer bar.End()
	config := m.replayConfig(c, in, url)
	config.Progress = func(p replay.Progress) { bar.Set(p.Done) }
	r, err := replay.New(config)
	if err != nil {
		return replay.Result{}, err
	}
	if !trace.NamesPrefixes(in.requests) {
		return r.Run(ctx)
	}
	counters := enginecounters.Config{Speed: m.speed, Arrivals: time.Duration(float64(in.requests[len(in.requests)-1].At) / m.speed), Stages: stages}
	for _, e := range engines {
		counters.Engines = append(counters.Engines, e.URL)
	}
	return enginecounters.Replay(ctx, counters, r, m.log)
}

// announce prints what a run has shown.
func (m *matrix) announce(r run) {
	e := r.Result.Engine
	fmt.Fprintf(m.stderr, "  %d of %d answered, TTFT p95 %.0f ms, normalised mean %.1f ms and p99 %.0f ms, %.0f %% idle\n", r.Result.Completed, r.Result.Requests,
		1000*e.TTFT.P95, 1000*e.Normalised.Mean, 1000*e.Normalised.P99, 100*r.Result.IdleCPU)
	if u := r.Result.Reuse; u != nil {
		fmt.Fprintf(m.stderr, "  prefix hits %.0f %%, %.0f %% of the ideal, load CV %.2f\n", 100*u.HitRate, 100*u.OfIdeal, u.LoadCV)
	}
	if r.Result.Void != "" {
		fmt.Fprintf(m.stderr, "  void: %s\n", r.Result.Void)
	}
	for _, f := range r.Result.Failures {
		fmt.Fprintf(m.stderr, "  failed: %d × %s, first: %s\n", f.Count, f.Kind, f.First)
	}
}

func (m *matrix) names() []string {
	var out []string
	for _, c := range m.contestants {
		out = append(out, c.Name)
	}
	return out
}

// evidence returns what the runs show.
func (m *matrix) evidence(runs map[cell]run) evidence {
	names := m.names()
	e := evidence{
		Trace: m.workload.name, Subject: names[0], contestants: names, rates: m.rates,
		Summaries: summarise(names, m.rates, runs), Comparisons: compare(names[0], names[1:], m.rates, runs),
	}
	engines := fmt.Sprintf("%d emulated engines of %s at speed %g, new ones for each run", m.replicas, m.model.Profile, m.speed)
	if len(m.external) > 0 {
		engines = fmt.Sprintf("%d engines that ran before, %s", len(m.external), m.model.Name)
	}
	plane := "the embedded proxy"
	if m.tools.Envoy != "" {
		plane = "stock Envoy"
	}
	e.Conditions = []string{fmt.Sprintf("%d requests a run, %s; %d CPUs for clients, engines and routers. Cascade: %s in front, native policies, admission off as the others refuse nothing, first plan from %d earlier requests.",
		m.workload.requests, engines, runtime.NumCPU(), plane, m.history)}
	beside, builds := 0, map[string]int{}
	for _, r := range runs {
		builds[r.Build]++
		if r.BesideNiced {
			beside++
		}
	}
	if beside > 0 {
		e.Conditions = append(e.Conditions, fmt.Sprintf("Work of the lowest priority ran beside %d of %d runs; its CPU time counts as idle.", beside, len(runs)))
	}
	if len(builds) > 1 {
		e.Conditions = append(e.Conditions, fmt.Sprintf("The runs are of %d builds of this program; -repeat-stale makes those of others than the present one again.", len(builds)))
	}
	return e
}
