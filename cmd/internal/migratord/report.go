package migratord

import (
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	fleetreport "github.com/cascadeinfer/cascade/xds/loadreport"
)

func (d *Daemon) newReporter() error {
	var err error
	d.reporter, err = loadreport.New(loadreport.Config{
		Conn: d.cfg.Control, Others: d.cfg.OtherControl, Replica: d.id, Model: d.model, Report: d.report, OnReply: d.handleReply,
		Changed: d.frontend.Changed(), Logger: d.cfg.Logger,
	})
	return err
}

// Bounds of the lists of a LoadReport; the excess is left out.
const (
	maxReportedProblems = 8
	maxReportedSlots    = 16
	maxReportedRoutes   = 32
)

// report returns the load report of the replica, including the preceding process's part.
func (d *Daemon) report() *api.LoadReport {
	s := d.Status()
	r := loadreport.Encode(d.model, s)
	r.Topology, r.Streams = d.topology(), uint32(d.frontend.ClientRequests())
	if d.market == nil {
		for _, leg := range d.frontend.LocalLegs() {
			r.Residents++
			if leg.Pinned != policies.NotPinned {
				r.Pinned++
			}
		}
	} else {
		d.addMarket(r)
	}
	d.predecessor.currentState().addToReport(r)
	if d.cfg.Problems != nil {
		for _, p := range d.cfg.Problems() {
			r.Problems = append(r.Problems, &api.Problem{Kind: p.Kind, Text: p.Text})
		}
	}
	if s.CapacityWarning != "" {
		r.Problems = append(r.Problems, &api.Problem{Kind: fleetreport.ProblemCapacity, Text: s.CapacityWarning})
	}
	r.Problems = r.Problems[:min(len(r.Problems), maxReportedProblems)]
	return r
}

// addMarket adds to a report the state of the components for migrations.
func (d *Daemon) addMarket(r *api.LoadReport) {
	s := d.market.Status()
	r.Residents, r.Pinned, r.PinnedSeconds = uint32(s.Residents), uint32(s.Pinned), s.PinnedSeconds
	r.Proposal = d.market.Proposal()
	// The reporter splits a list that exceeds one report.
	r.Migrations = slices.Concat(reportedMigrations(d.executor.Migrations()), d.rescues.all(), d.pulled.all())
	r.Routes = reportedRoutes(d.paths.Status(), d.describeLink)
	if d.host != nil {
		all := d.host.Status()
		r.Slots = all[:min(len(all), maxReportedSlots)]
		if d.cfg.Host != nil {
			for _, s := range r.Slots {
				s.Host = d.host.Name()
			}
		}
	}
}

// reportedMigrations returns the migrations out of this replica for a report: those in progress,
// and then the latest that have ended. The argument is ordered by start time, the result newest
// first.
func reportedMigrations(moves []move.Migration) []*api.Migration {
	var live, ended []*api.Migration
	for _, m := range slices.Backward(moves) {
		switch {
		case m.Role != "source":
		case m.State == "moved" || m.State == "failed":
			ended = append(ended, encodeMigration(m))
		default:
			live = append(live, encodeMigration(m))
		}
	}
	return append(live, ended...)
}

// finalStates maps final states to their names in reports.
var finalStates = map[string]string{"moved": "done", "failed": "aborted"}

// encodeMigration converts a migration to its form in reports.
func encodeMigration(m move.Migration) *api.Migration {
	state := m.State
	if final := finalStates[state]; final != "" {
		state = final
	}
	return &api.Migration{
		Id: m.ID, Request: m.Request, Cause: m.Cause.String(), FrontEnd: string(m.FrontEnd), From: string(m.From), To: string(m.To),
		Method: m.Mode, Transport: m.Transport, State: state, Reason: m.Failure, Rounds: uint32(m.Rounds), Tokens: int64(m.Tokens), Bytes: m.Bytes,
		StallSeconds: m.Stall.Seconds(), Seconds: m.Seconds, StartedUnixMicros: m.StartedAt.UnixMicro(),
	}
}

// reportedRoutes returns the routes of a report: first the transports in general, then the paths to
// peers, with suspended paths before working ones. over returns the link that a transport from a
// peer uses.
func reportedRoutes(paths []transport.Path, over func(peer policies.ReplicaID, transport string) string) []*api.Route {
	var general, held, ready []*api.Route
	for _, p := range paths {
		r := &api.Route{Transport: p.Transport, Peer: string(p.Peer), State: fleetreport.RouteReady, BytesPerSecond: p.Rate}
		if p.Err != nil {
			r.State, r.Reason = fleetreport.RouteHeld, p.Err.Error()
		}
		switch {
		case p.Peer == "":
			switch {
			case errors.Is(p.Err, transport.ErrUnsupportedMemory):
				r.State = fleetreport.RouteUnsuited
			case errors.Is(p.Err, transport.ErrEngineAway):
				r.State = fleetreport.RouteUnknown
			case p.Err != nil:
				r.State = fleetreport.RouteBroken
			}
			general = append(general, r)
		case p.Err != nil:
			held = append(held, r)
		default:
			ready = append(ready, r)
		}
	}
	all := slices.Concat(general, held, ready)
	all = all[:min(len(all), maxReportedRoutes)]
	for _, r := range all {
		if r.Peer != "" {
			r.Path = over(policies.ReplicaID(r.Peer), r.Transport)
		}
	}
	return all
}
