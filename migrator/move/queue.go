package move

import (
	"context"

	"github.com/cascadeinfer/cascade/policies/bidask"
)

// role is a replica's part in a migration.
type role uint8

const (
	source role = iota
	target
	front
)

// String returns the name of the role, for tables, metrics and traces.
func (r role) String() string { return [...]string{"source", "target", "front"}[r] }

// key identifies a queue of jobs, which run in order.
type key struct {
	role role
	deal bidask.Deal
}

// job is work that may block.
type job struct {
	kind ActionKind
	// run does it, on a goroutine of its own. The function that it returns, unless nil,
	// runs on Run's goroutine afterwards, unless the job was cancelled.
	run func(ctx context.Context) func()
}

// cancellable reports whether a job may be stopped and its result discarded. A freeze
// must end before its thaw.
func (j job) cancellable() bool {
	return j.kind == List || j.kind == Prepare || j.kind == Pull
}

// jobQueue holds the jobs of one key; the first one is running.
type jobQueue struct {
	jobs      []job
	cancel    context.CancelFunc // of the first job
	cancelled bool               // the first job was cancelled
}

// enqueue adds a job to a queue. Thaw, Drop, Release and Revoke cancel the cancellable
// jobs before them.
func (m *Executor) enqueue(k key, j job) {
	l := m.queues[k]
	if l == nil {
		l = &jobQueue{}
		m.queues[k] = l
	}
	switch j.kind {
	case Thaw, Drop, Release, Revoke:
		kept := l.jobs[:0]
		for i, o := range l.jobs {
			switch {
			case i == 0 && o.cancellable():
				l.cancelled = true
				l.cancel()
			case o.cancellable():
				continue
			}
			kept = append(kept, o)
		}
		l.jobs = kept
	}
	l.jobs = append(l.jobs, j)
	if len(l.jobs) == 1 {
		m.startNext(k, l)
	}
}

// startNext runs the first job of a queue, then the next.
func (m *Executor) startNext(k key, l *jobQueue) {
	ctx, stop := context.WithCancel(m.ctx)
	l.cancel, l.cancelled = stop, false
	j := l.jobs[0]
	m.workers.Go(func() {
		then := j.run(ctx)
		stop()
		m.post(func() {
			cut := l.cancelled
			l.jobs = l.jobs[1:]
			if len(l.jobs) > 0 {
				m.startNext(k, l)
			} else {
				delete(m.queues, k)
			}
			if then != nil && !cut {
				then()
			}
		})
	})
}
