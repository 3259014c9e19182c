package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// maxMigrations bounds LoadReport.migrations.
const maxMigrations = 64

// maxSlots bounds LoadReport.slots.
const maxSlots = 16

// maxProblems bounds LoadReport.problems.
const maxProblems = 8

// maxRoutes bounds LoadReport.routes.
const maxRoutes = 32

// migrationDelta tracks which migrations the control plane knows, and in which state. The
// zero value has reported none. It is safe for concurrent use: one goroutine builds reports,
// another receives replies.
//
// Invariant: a state is reported with every report until one that contains it is
// acknowledged, unless the migration changes or disappears first.
type migrationDelta struct {
	mu    sync.Mutex
	known map[string]*reportedState // by migration
}

// reportedState is the last reported state of a migration.
type reportedState struct {
	state        state
	firstReport  uint64 // the first report of this stream with it; 0: none yet
	acknowledged bool
}

// state is what must change for a migration to be reported again. Its duration is not part of it.
type state struct {
	state, why, to, way, transport string
	rounds                         uint32
	bytes                          int64
}

// pending returns the migrations that the report with this sequence must contain: at most
// maxMigrations; the next reports contain the rest.
func (m *migrationDelta) pending(all []*api.Migration, sequence uint64) []*api.Migration {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string]*reportedState, len(all))
	var out []*api.Migration
	for _, v := range all {
		s := state{v.GetState(), v.GetReason(), v.GetTo(), v.GetMethod(), v.GetTransport(), v.GetRounds(), v.GetBytes()}
		k := m.known[v.GetId()]
		if k == nil || k.state != s {
			k = &reportedState{state: s}
		}
		next[v.GetId()] = k
		if k.acknowledged || len(out) == maxMigrations {
			continue
		}
		if k.firstReport == 0 {
			k.firstReport = sequence
		}
		out = append(out, v)
	}
	m.known = next // drop the migrations that the caller no longer returns
	return out
}

// acknowledge records that all reports up to a sequence were received.
func (m *migrationDelta) acknowledge(sequence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.known {
		if k.firstReport != 0 && k.firstReport <= sequence {
			k.acknowledged = true
		}
	}
}

// reset starts a new stream, whose reports are numbered from 1. Reports in flight may be lost.
func (m *migrationDelta) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.known {
		k.firstReport = 0
	}
}
