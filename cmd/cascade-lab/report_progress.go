package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/evaluation"
	"github.com/cascadeinfer/cascade/cmd/internal/progress"
)

// reportProgress shows how far the simulations are. It is safe for concurrent use.
type reportProgress struct {
	e       *evaluation.Evaluation
	workers int
	began   time.Time

	mu   sync.Mutex
	bar  *progress.Bar
	done float64 // seconds of one processor, as estimated
	all  float64
}

func newReportProgress(s *settings, e *evaluation.Evaluation, left []evaluation.Run, workers int) *reportProgress {
	p := &reportProgress{e: e, workers: workers, began: time.Now(), bar: progress.New(s.stderr, "simulate", len(left))}
	for _, r := range left {
		p.all += e.Effort(r)
	}
	return p
}

// expected returns how long all of it takes on a machine that does nothing else.
func (p *reportProgress) expected() string {
	return formatDuration(time.Duration(p.all / float64(p.workers) * float64(time.Second)))
}

// add counts a finished run after keep, which keeps its outcome.
func (p *reportProgress) add(r evaluation.Run, keep func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep()
	p.done += p.e.Effort(r)
	left := time.Duration(float64(time.Since(p.began)) * (p.all - p.done) / p.done)
	p.bar.Describe(fmt.Sprintf("simulate, %s left", formatDuration(left)))
	p.bar.Add(1)
}
