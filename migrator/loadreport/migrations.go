package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// maxMigrations is what a report may carry; see LoadReport.moves.
const maxMigrations = 64

// maxSlots is what a report may carry; see LoadReport.slots.
const maxSlots = 16

// maxRoutes is what a report may carry; see LoadReport.routes.
const maxRoutes = 32

// migrationDelta knows which moves the control plane has heard of, and in which state.
// The zero value knows of none. It is safe for concurrent use: reports are
// made by one goroutine and answered on another.
//
// Invariant: a state that was given is told again with every report until a
// report with it is answered, unless the move changes first or is not given
// any more.
type migrationDelta struct {
	mu    sync.Mutex
	known map[string]*reportedState // by move
}

// reportedState is the last state of a move that was told, and whether it was heard.
type reportedState struct {
	state        state
	firstReport  uint64 // the first report of this stream with it; 0: none yet
	acknowledged bool
}

// state is what makes a move news. How long it has taken so far does not.
type state struct {
	state, why, to, way, transport string
	rounds                         uint32
	bytes                          int64
}

// pending returns the moves of all that the report of that number is to tell: as
// many as it may, the rest with the next ones.
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
	m.known = next // what is not given any more is forgotten
	return out
}

// acknowledge notes that all reports up to that number were taken in.
func (m *migrationDelta) acknowledge(sequence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.known {
		if k.firstReport != 0 && k.firstReport <= sequence {
			k.acknowledged = true
		}
	}
}

// reset begins a new stream, whose reports are numbered from 1. What was on
// its way may be lost.
func (m *migrationDelta) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.known {
		k.firstReport = 0
	}
}
