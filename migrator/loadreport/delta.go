package loadreport

import (
	"sync"

	"github.com/cascadeinfer/cascade/xds/api"
)

// maxMigrations bounds LoadReport.migrations.
const maxMigrations = 64

// delta tracks what the control plane knows of migrations, and of the replica's location: a large part of a
// report that hardly ever changes. The zero value has reported nothing. It is safe for concurrent use: one
// goroutine builds reports, another receives replies.
//
// Invariant: a state is reported with every report until one that contains it is
// acknowledged, unless the migration changes or disappears first. So is a location.
type delta struct {
	mu         sync.Mutex
	migrations map[string]*reportedState
	topology   *api.Topology
	location   delivery // of topology
}

// delivery says whether the control plane has received a part of reports.
type delivery struct {
	firstReport  uint64 // the first report of this stream that contains it; 0: none yet
	acknowledged bool
}

// include reports whether the report with this sequence must contain the part.
func (d *delivery) include(sequence uint64) bool {
	if !d.acknowledged && d.firstReport == 0 {
		d.firstReport = sequence
	}
	return !d.acknowledged
}

// acknowledge records that all reports up to a sequence were received.
func (d *delivery) acknowledge(sequence uint64) {
	d.acknowledged = d.acknowledged || d.firstReport != 0 && d.firstReport <= sequence
}

// reportedState is the last reported state of a migration.
type reportedState struct {
	delivery
	state state
}

// state is what must change for a migration to be reported again. Its duration is not part of it.
type state struct {
	state, why, to, way, transport string
	rounds                         uint32
	bytes                          int64
}

// cut removes from a report what the control plane knows. Of the migrations it leaves at most maxMigrations;
// the next reports contain the rest.
func (d *delta) cut(r *api.LoadReport) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := make(map[string]*reportedState, len(r.Migrations))
	var out []*api.Migration
	for _, v := range r.Migrations {
		s := state{v.GetState(), v.GetReason(), v.GetTo(), v.GetMethod(), v.GetTransport(), v.GetRounds(), v.GetBytes()}
		k := d.migrations[v.GetId()]
		if k == nil || k.state != s {
			k = &reportedState{state: s}
		}
		next[v.GetId()] = k
		if len(out) < maxMigrations && k.include(r.Sequence) {
			out = append(out, v)
		}
	}
	r.Migrations, d.migrations = out, next // forget the migrations that the caller no longer returns
	if r.Topology != d.topology {
		d.topology, d.location = r.Topology, delivery{}
	}
	if !d.location.include(r.Sequence) {
		r.Topology = nil
	}
}

// acknowledge records that all reports up to a sequence were received.
func (d *delta) acknowledge(sequence uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.location.acknowledge(sequence)
	for _, k := range d.migrations {
		k.acknowledge(sequence)
	}
}

// reset starts a new stream, whose reports are numbered from 1, possibly to another process. Reports in flight may
// be lost.
func (d *delta) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.location = delivery{}
	for _, k := range d.migrations {
		k.firstReport = 0
	}
}
