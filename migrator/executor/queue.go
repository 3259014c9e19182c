package executor

import (
	"context"

	"github.com/cascadeinfer/cascade/migrator/transfer"
	"github.com/cascadeinfer/cascade/policies/bidask"
)

// role is a replica's part in a move.
type role uint8

const (
	source role = iota
	target
	front
)

// String names the role, for tables, metrics and traces.
func (r role) String() string { return [...]string{"source", "target", "front"}[r] }

// key names one line of work: what is done for it is done in order.
type key struct {
	role role
	move bidask.Deal
}

// job is one thing that takes time.
type job struct {
	kind transfer.ActionKind
	// run does it, on a goroutine of its own. What it returns is done afterwards
	// on the mover's, unless the job was cut short; it may be nil.
	run func(ctx context.Context) func()
}

// cancellable reports whether a job may be stopped in the middle, and what it would
// have brought be forgotten. A freeze must end before its thaw.
func (j job) cancellable() bool {
	switch j.kind {
	case transfer.List, transfer.Prepare, transfer.Pull:
		return true
	}
	return false
}

// jobQueue is the work of one key: the first job is being done.
type jobQueue struct {
	jobs      []job
	cancel    context.CancelFunc // of the first
	cancelled bool               // the first was cut short
}

// enqueue adds a job to a line. Thaw, Drop, Release and Revoke cut short what
// is before them.
func (m *Executor) enqueue(k key, j job) {
	l := m.queues[k]
	if l == nil {
		l = &jobQueue{}
		m.queues[k] = l
	}
	switch j.kind {
	case transfer.Thaw, transfer.Drop, transfer.Release, transfer.Revoke:
		kept := l.jobs[:0]
		for i, o := range l.jobs {
			switch {
			case i == 0 && o.cancellable():
				l.cancelled = true
				l.cancel()
			case i > 0 && o.cancellable():
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

// startNext does the first job of a line, then the next.
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
