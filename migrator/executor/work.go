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

// cuttable reports whether a job may be stopped in the middle, and what it would
// have brought be forgotten. A freeze must end before its thaw.
func (j job) cuttable() bool {
	switch j.kind {
	case transfer.List, transfer.Prepare, transfer.Pull:
		return true
	}
	return false
}

// line is the work of one key: the first job is being done.
type line struct {
	jobs []job
	stop context.CancelFunc // of the first
	cut  bool               // the first was cut short
}

// enqueue adds a job to a line. Thaw, Drop, Release and Revoke cut short what
// is before them.
func (m *Mover) enqueue(k key, j job) {
	l := m.lines[k]
	if l == nil {
		l = &line{}
		m.lines[k] = l
	}
	switch j.kind {
	case transfer.Thaw, transfer.Drop, transfer.Release, transfer.Revoke:
		kept := l.jobs[:0]
		for i, o := range l.jobs {
			switch {
			case i == 0 && o.cuttable():
				l.cut = true
				l.stop()
			case i > 0 && o.cuttable():
				continue
			}
			kept = append(kept, o)
		}
		l.jobs = kept
	}
	l.jobs = append(l.jobs, j)
	if len(l.jobs) == 1 {
		m.begin(k, l)
	}
}

// begin does the first job of a line, then the next.
func (m *Mover) begin(k key, l *line) {
	ctx, stop := context.WithCancel(m.ctx)
	l.stop, l.cut = stop, false
	j := l.jobs[0]
	m.workers.Go(func() {
		then := j.run(ctx)
		stop()
		m.post(func() {
			cut := l.cut
			l.jobs = l.jobs[1:]
			if len(l.jobs) > 0 {
				m.begin(k, l)
			} else {
				delete(m.lines, k)
			}
			if then != nil && !cut {
				then()
			}
		})
	})
}
