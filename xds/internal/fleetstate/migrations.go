package fleetstate

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// maxMigrations bounds the migrations that are kept.
const maxMigrations = 512

// MigrationLog holds the last migrations. The zero value is empty and ready. It is not safe
// for concurrent use.
//
// Invariants: it holds at most 512 migrations, each once; a final state is never
// replaced; a migration is counted when it is first reported as ended, and not again when its
// migrator has connected anew and reports the latest ones once more.
type MigrationLog struct {
	list    []*loadreport.Migration // in the order of their first reports
	byID    map[string]*loadreport.Migration
	totals  map[MigrationKind]*MigrationTotal
	counted map[policies.ReplicaID]*countedIDs // by the reporter
}

// maxCounted is how many ended migrations of a reporter are recognised, more than a migrator keeps: 64 moves, and 256
// rescues and copies of prefixes each.
const maxCounted = 640

// countedIDs are the hashes of the ids of a reporter's latest migrations that were counted.
type countedIDs struct {
	hashes []uint64
	next   int // the oldest, once there are maxCounted
}

var idSeed = maphash.MakeSeed()

// add reports whether an id is a new one, and keeps it.
func (c *countedIDs) add(id string) bool {
	h := maphash.String(idSeed, id)
	switch {
	case slices.Contains(c.hashes, h):
		return false
	case len(c.hashes) < maxCounted:
		c.hashes = append(c.hashes, h)
	default:
		c.hashes[c.next] = h
		c.next = (c.next + 1) % maxCounted
	}
	return true
}

// Forget drops what is kept of reporters that have left.
func (l *MigrationLog) Forget(left func(policies.ReplicaID) bool) {
	maps.DeleteFunc(l.counted, func(id policies.ReplicaID, _ *countedIDs) bool { return left(id) })
}

// MigrationKind is the key by which ended migrations are counted. Unknown causes and methods
// count as "other", so that no report can add a kind.
type MigrationKind struct{ Cause, Method, Result string }

// MigrationTotal sums over the ended migrations of one kind.
type MigrationTotal struct {
	MigrationKind
	Count uint64
	Bytes float64
	Stall StallHistogram // seconds; of completed migrations, but not of prefix pulls
}

// StallHistogram counts values by upper bound, cumulatively.
type StallHistogram struct {
	Count   uint64
	Sum     float64
	Buckets [len(StallBounds)]uint64
}

// StallBounds are the upper bounds of the stall histogram, in seconds.
var StallBounds = [...]float64{0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}

func (h *StallHistogram) observe(x float64) {
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
	knownCauses  = []string{"growth", "outlier", "drain", "spill", "prefill", "cheaper", "engine lost", loadreport.CausePrefix}
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
func (l *MigrationLog) Add(now time.Time, reporter policies.ReplicaID, migrations []loadreport.Migration) {
	if l.byID == nil {
		l.byID, l.totals = make(map[string]*loadreport.Migration), make(map[MigrationKind]*MigrationTotal)
		l.counted = make(map[policies.ReplicaID]*countedIDs)
	}
	for _, m := range migrations {
		m.Reported = now
		known := l.byID[m.ID]
		if known != nil && known.Ended() {
			continue
		}
		if m.Ended() {
			if l.counted[reporter] == nil {
				l.counted[reporter] = new(countedIDs)
			}
			if !l.counted[reporter].add(m.ID) {
				continue
			}
		}
		if known == nil {
			l.insert(m)
		} else {
			*known = m
		}
		if m.Ended() {
			l.count(m)
		}
	}
}

// insert adds a new migration, in place of the oldest when the log is full.
func (l *MigrationLog) insert(m loadreport.Migration) {
	if len(l.list) == maxMigrations {
		delete(l.byID, l.list[0].ID)
		l.list = slices.Delete(l.list, 0, 1)
	}
	l.list = append(l.list, &m)
	l.byID[m.ID] = &m
}

func (l *MigrationLog) count(m loadreport.Migration) {
	kind := MigrationKind{nameOrOther(knownCauses, m.Cause), nameOrOther(knownMethods, m.Method), m.State}
	t := l.totals[kind]
	if t == nil {
		t = &MigrationTotal{MigrationKind: kind}
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
func (l *MigrationLog) Newest(since time.Time, limit int) []loadreport.Migration {
	out := make([]loadreport.Migration, 0, min(limit, len(l.list)))
	for i := len(l.list) - 1; i >= 0 && len(out) < limit; i-- {
		if l.list[i].Reported.After(since) {
			out = append(out, *l.list[i])
		}
	}
	return out
}

// Running counts the migrations that were reported after since and have not ended, without pulls of prefixes.
func (l *MigrationLog) Running(since time.Time) (n int) {
	for _, m := range l.list {
		if !m.Ended() && m.Cause != loadreport.CausePrefix && m.Reported.After(since) {
			n++
		}
	}
	return n
}

// Totals returns copies of the totals, sorted by kind.
func (l *MigrationLog) Totals() []MigrationTotal {
	var out []MigrationTotal
	for t := range maps.Values(l.totals) {
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b MigrationTotal) int {
		return cmp.Or(cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Result, b.Result))
	})
	return out
}
