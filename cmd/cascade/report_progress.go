package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/cascadeinfer/cascade/engine/evaluation"
)

// reportProgress shows how far the simulations are. It is safe for concurrent use.
type reportProgress struct {
	e       *evaluation.Evaluation
	workers int
	began   time.Time
	out     io.Writer

	mu   sync.Mutex
	bar  *progressbar.ProgressBar
	done float64 // seconds of one processor, as estimated
	all  float64
}

func newReportProgress(s *settings, e *evaluation.Evaluation, left []evaluation.Run, workers int) *reportProgress {
	p := &reportProgress{e: e, workers: workers, began: time.Now(), out: s.stderr, bar: newProgressBar(s, "simulate", len(left))}
	for _, r := range left {
		p.all += e.Effort(r)
	}
	return p
}

// expected returns how long all of it takes on a machine that does nothing else.
func (p *reportProgress) expected() string {
	return formatDuration(time.Duration(p.all / float64(p.workers) * float64(time.Second)))
}

// add counts a finished run after keep, which stores it.
func (p *reportProgress) add(r evaluation.Run, keep func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep()
	p.done += p.e.Effort(r)
	left := time.Duration(float64(time.Since(p.began)) * (p.all - p.done) / p.done)
	p.bar.Describe(fmt.Sprintf("simulate, %s left", formatDuration(left)))
	return p.bar.Add(1)
}

// finish ends the bar, which stays where it was if the simulations were interrupted.
func (p *reportProgress) finish(err error) {
	if err == nil {
		p.bar.Finish()
	} else {
		p.bar.Exit()
	}
	fmt.Fprintln(p.out)
}
