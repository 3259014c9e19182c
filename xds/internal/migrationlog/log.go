// Package migrationlog keeps the last migrations of a fleet and sums over all that
// have ended, for operators and metrics. It reads no clock.
package migrationlog

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// maxMigrations bounds the migrations that are kept.
const maxMigrations = 512

// Log holds the last migrations. The zero value is empty and ready. It is not safe
// for concurrent use.
//
// Invariants: it holds at most 512 migrations, each once; a final state is never
// replaced; a migration is counted when it is first reported as ended.
type Log struct {
	list   []*loadreport.Migration // in the order of their first reports
	byID   map[string]*loadreport.Migration
	totals map[Kind]*Total
}

// Kind is the key by which ended migrations are counted. Unknown causes and methods
// count as "other", so that no report can add a kind.
type Kind struct{ Cause, Method, Result string }

// Total sums over the ended migrations of one kind.
type Total struct {
	Kind
	Count uint64
	Bytes float64
	Stall Histogram // seconds; of completed migrations, but not of prefix pulls
}

// Histogram counts values by upper bound, cumulatively.
type Histogram struct {
	Count   uint64
	Sum     float64
	Buckets [len(StallBounds)]uint64
}

// StallBounds are the upper bounds of the stall histogram, in seconds.
var StallBounds = [...]float64{0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

func (h *Histogram) observe(x float64) {
	h.Count++
	h.Sum += x
	for i, bound := range StallBounds {
		if x <= bound {
			h.Buckets[i]++
		}
	}
}

// The causes and methods that are counted under their own names.
var (
	knownCauses  = []string{"growth", "outlier", "drain", "spill", "prefill", "engine lost", loadreport.CausePrefix}
	knownMethods = []string{"live", "reprompt", "handoff"}
)

func nameOrOther(known []string, name string) string {
	if slices.Contains(known, name) {
		return name
	}
	return "other"
}

// Add merges the migrations of a report that came at now: a later state replaces
// the one before.
func (l *Log) Add(now time.Time, migrations []loadreport.Migration) {
	for _, m := range migrations {
		m.Reported = now
		known := l.byID[m.ID]
		switch {
		case known == nil:
			l.insert(m)
		case known.Ended():
			continue
		default:
			*known = m
		}
		if m.Ended() {
			l.count(m)
		}
	}
}

// insert adds a new migration, in place of the oldest when the log is full.
func (l *Log) insert(m loadreport.Migration) {
	if l.byID == nil {
		l.byID, l.totals = make(map[string]*loadreport.Migration), make(map[Kind]*Total)
	}
	if len(l.list) == maxMigrations {
		delete(l.byID, l.list[0].ID)
		l.list = slices.Delete(l.list, 0, 1)
	}
	l.list = append(l.list, &m)
	l.byID[m.ID] = &m
}

func (l *Log) count(m loadreport.Migration) {
	kind := Kind{nameOrOther(knownCauses, m.Cause), nameOrOther(knownMethods, m.Method), m.State}
	t := l.totals[kind]
	if t == nil {
		t = &Total{Kind: kind}
		l.totals[kind] = t
	}
	t.Count++
	t.Bytes += float64(m.Bytes)
	if m.State == loadreport.MigrationDone && m.Cause != loadreport.CausePrefix { // no stream stalled
		t.Stall.observe(m.Stall)
	}
}

// Newest returns copies of up to limit migrations that were last reported after since,
// sorted by their first report, the latest first.
func (l *Log) Newest(since time.Time, limit int) []loadreport.Migration {
	out := make([]loadreport.Migration, 0, min(limit, len(l.list)))
	for i := len(l.list) - 1; i >= 0 && len(out) < limit; i-- {
		if l.list[i].Reported.After(since) {
			out = append(out, *l.list[i])
		}
	}
	return out
}

// Running counts the migrations that were reported after since and have not ended.
func (l *Log) Running(since time.Time) (n int) {
	for _, m := range l.list {
		if !m.Ended() && m.Reported.After(since) {
			n++
		}
	}
	return n
}

// Totals returns copies of the totals, sorted by kind.
func (l *Log) Totals() []Total {
	var out []Total
	for t := range maps.Values(l.totals) {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b Total) int {
		return cmp.Or(cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Result, b.Result))
	})
	return out
}
