package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// maxMoves is what a report may carry; see LoadReport.moves.
const maxMoves = 64

// maxSlots is what a report may carry; see LoadReport.slots.
const maxSlots = 16

// maxRoutes is what a report may carry; see LoadReport.routes.
const maxRoutes = 32

// moves knows which moves the control plane has heard of, and in which state.
// The zero value knows of none. It is safe for concurrent use: reports are
// made by one goroutine and answered on another.
//
// Invariant: a state that was given is told again with every report until a
// report with it is answered, unless the move changes first or is not given
// any more.
type moves struct {
	mu    sync.Mutex
	known map[string]*known // by move
}

// known is the last state of a move that was told, and whether it was heard.
type known struct {
	state state
	told  uint64 // the first report of this stream with it; 0: none yet
	heard bool
}

// state is what makes a move news. How long it has taken so far does not.
type state struct {
	state, why, to, way, transport string
	rounds                         uint32
	bytes                          int64
}

// news returns the moves of all that the report of that number is to tell: as
// many as it may, the rest with the next ones.
func (m *moves) news(all []*api.Migration, sequence uint64) []*api.Migration {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[string]*known, len(all))
	var out []*api.Migration
	for _, v := range all {
		s := state{v.GetState(), v.GetReason(), v.GetTo(), v.GetMethod(), v.GetTransport(), v.GetRounds(), v.GetBytes()}
		k := m.known[v.GetId()]
		if k == nil || k.state != s {
			k = &known{state: s}
		}
		next[v.GetId()] = k
		if k.heard || len(out) == maxMoves {
			continue
		}
		if k.told == 0 {
			k.told = sequence
		}
		out = append(out, v)
	}
	m.known = next // what is not given any more is forgotten
	return out
}

// heard notes that all reports up to that number were taken in.
func (m *moves) heard(sequence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.known {
		if k.told != 0 && k.told <= sequence {
			k.heard = true
		}
	}
}

// restart begins a new stream, whose reports are numbered from 1. What was on
// its way may be lost.
func (m *moves) restart() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range m.known {
		k.told = 0
	}
}
