package migratord

import (
	"errors"
	"slices"

	"github.com/cascadeinfer/cascade/migrator/executor"
	"github.com/cascadeinfer/cascade/migrator/loadreport"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/fleet"
)

func (d *Daemon) newReporter() error {
	var err error
	d.reporter, err = loadreport.New(loadreport.Config{
		Conn: d.cfg.Control, Others: d.cfg.OtherControl, Replica: d.id, Model: d.model, Status: d.Status, Extra: d.reportExtra, OnReply: d.handleReply,
		Changed: d.frontend.Changed(), Logger: d.cfg.Logger,
	})
	return err
}

// reportExtra is what reports say beyond the front's state, of the process before this
// one too.
func (d *Daemon) reportExtra() loadreport.Extra {
	return d.predecessor.currentState().addToExtra(d.ownExtra())
}

// ownExtra is what reports say of this process.
func (d *Daemon) ownExtra() loadreport.Extra {
	e := loadreport.Extra{Site: d.site(), Streams: d.frontend.ClientRequests()}
	if d.market == nil {
		for _, r := range d.frontend.LocalLegs() {
			e.Residents++
			if r.Pinned != policies.NotPinned {
				e.Pinned++
			}
		}
		return e
	}
	s := d.market.Status()
	e.Residents, e.Pinned, e.PinnedSeconds = s.Residents, s.Pinned, s.PinnedSeconds
	e.Proposal = d.market.Proposal()
	e.Migrations = append(reportedMigrations(d.executor.Migrations()), d.rescues.all()...) // what is too much for one report, the uplink tells with the next
	e.Routes = reportedRoutes(d.executor.TransportPaths(), d.describeLink)
	if d.host != nil {
		e.Slots = d.host.Status()
		if d.cfg.Host != nil {
			for _, s := range e.Slots {
				s.Host = d.host.Name()
			}
		}
	}
	return e
}

// maxReportedMigrations is how many moves a report may hold.
const maxReportedMigrations = 64

// reportedMigrations is what a report says of the moves that this replica sells: those that
// are under way, and the latest of those that have ended. moves are in the order
// of their beginnings, the ended ones after the others.
func reportedMigrations(moves []executor.Migration) []*api.Migration {
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
	all := append(live, ended...)
	return all[:min(len(all), maxReportedMigrations)]
}

// finalStates are the final states in the words of reports.
var finalStates = map[string]string{"moved": "done", "failed": "aborted"}

// encodeMigration is a move in the words of reports.
func encodeMigration(m executor.Migration) *api.Migration {
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

// maxReportedRoutes is how many routes a report may hold.
const maxReportedRoutes = 32

// reportedRoutes is what a report says of transports: all of them in general, then of
// peers those paths that are held back before those that work. over says what a
// transport from a peer goes over.
func reportedRoutes(paths []transport.Path, over func(peer policies.ReplicaID, transport string) string) []*api.Route {
	var general, held, ready []*api.Route
	for _, p := range paths {
		r := &api.Route{Transport: p.Transport, Peer: string(p.Peer), State: fleet.RouteReady, BytesPerSecond: p.Rate}
		if p.Err != nil {
			r.State, r.Reason = fleet.RouteHeld, p.Err.Error()
		}
		switch {
		case p.Peer == "":
			if errors.Is(p.Err, transport.ErrUnsupportedMemory) {
				r.State = fleet.RouteUnsuited
			} else if p.Err != nil {
				r.State = fleet.RouteBroken
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
