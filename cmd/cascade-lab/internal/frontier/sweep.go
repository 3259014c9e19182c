package frontier

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/cmd/internal/progress"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/engine/trace"
)

// saturating is how many requests of a workload measure what a fleet completes when it is saturated,
// for each replica, and burst their rate, at which they come all at once.
const (
	saturating = 200
	burst      = 1e6
)

// baselineNames are the rivals; the first is the one of the longest decile's rule.
var baselineNames = []string{"least-load", "power-of-two", "prefix-tree"}

// candidate is a policy of Cascade with a planner's setting.
type candidate struct {
	Name, Policy   string
	IterationRatio float64 // as in sim.Config
	Slack          float64 // as in sim.Config
}

// cell is one workload at one load on one fleet, and the figures of every system there.
type cell struct {
	workload string
	replicas int
	load     float64
	rivals   []figures // in the order of baselineNames
	systems  []figures // in the order of the candidates
}

// sweep is what to simulate.
type sweep struct {
	profile    cost.Profile
	workloads  []trace.Generator
	replicas   []int
	loads      []float64
	seeds      []uint64
	candidates []candidate
	requests   int // for each seed
	workers    int
	store      store
	progress   io.Writer
}

// run simulates every cell, several at a time, and returns them in order.
func (s sweep) run(ctx context.Context) ([]cell, error) {
	var cells []cell
	for _, w := range s.workloads {
		for _, n := range s.replicas {
			for _, l := range s.loads {
				cells = append(cells, cell{workload: w.Name, replicas: n, load: l})
			}
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.workers)
	bar := progress.New(s.progress, "cells", len(cells))
	defer bar.End()
	for i := range cells {
		group.Go(func() error {
			if err := s.simulateCell(ctx, &cells[i]); err != nil {
				return fmt.Errorf("%s, %d replicas, load %v: %w", cells[i].workload, cells[i].replicas, cells[i].load, err)
			}
			bar.Add(1)
			return nil
		})
	}
	return cells, group.Wait()
}

// simulateCell fills in the figures of a cell.
func (s sweep) simulateCell(ctx context.Context, c *cell) error {
	i := slices.IndexFunc(s.workloads, func(g trace.Generator) bool { return g.Name == c.workload })
	g := s.workloads[i]
	file, err := s.store.path(s, g, c)
	if err != nil {
		return err
	}
	if done, err := s.store.read(file, c); err != nil || done {
		return err
	}
	g.Rate, g.Requests = burst, saturating*c.replicas
	full, err := s.simulate(ctx, candidate{Policy: baselineNames[0]}, c.replicas, g, s.seeds[0], nil)
	if err != nil {
		return err
	}
	g.Rate, g.Requests = c.load*full.Engine.RequestsPerSecond, s.requests
	for _, name := range baselineNames {
		f, err := s.measure(ctx, candidate{Policy: name}, c.replicas, g)
		if err != nil {
			return err
		}
		c.rivals = append(c.rivals, f)
	}
	for _, k := range s.candidates {
		f, err := s.measure(ctx, k, c.replicas, g)
		if err != nil {
			return err
		}
		f.Name = k.Name
		c.systems = append(c.systems, f)
	}
	return s.store.write(file, c)
}

// measure simulates one system with all seeds and returns the figures of all requests together.
func (s sweep) measure(ctx context.Context, k candidate, replicas int, g trace.Generator) (figures, error) {
	var all []sample
	stages, failed := 0, 0
	for _, seed := range s.seeds {
		r, err := s.simulate(ctx, k, replicas, g, seed, func(r *replay.Record) {
			if r.Error != "" {
				failed++
			} else {
				all = append(all, sample{prompt: r.Input, ttft: r.TTFT, normalised: r.E2E / float64(r.Tokens)})
			}
		})
		if err != nil {
			return figures{}, err
		}
		if n := len(r.Plans); n > 0 {
			stages = max(stages, len(r.Plans[n-1].Counts))
		}
	}
	if failed > 0 { // the system would be judged by the requests that it served
		return figures{}, fmt.Errorf("%s: %d of %d requests failed; a comparison needs all of them", cmp.Or(k.Name, k.Policy), failed, failed+len(all))
	}
	f := summarise(all)
	f.Name, f.Stages = cmp.Or(k.Name, k.Policy), stages
	return f, nil
}

// simulate runs one system with one seed.
func (s sweep) simulate(ctx context.Context, k candidate, replicas int, g trace.Generator, seed uint64, record func(*replay.Record)) (sim.Result, error) {
	g.Seed = seed
	source, err := g.Open()
	if err != nil {
		return sim.Result{}, err
	}
	run, err := sim.New(sim.Config{
		Policy: k.Policy, IterationRatio: k.IterationRatio, Slack: k.Slack, Replicas: replicas, Profile: s.profile, Source: source, Seed: seed, Record: record,
	})
	if err != nil {
		return sim.Result{}, err
	}
	return run.Run(ctx)
}
