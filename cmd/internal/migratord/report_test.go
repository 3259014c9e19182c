package migratord

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cascadeinfer/cascade/migrator/move"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// TestReportedMigrations checks that a report has only migrations out of this replica: those in
// progress, then the latest that have ended.
func TestReportedMigrations(t *testing.T) {
	moves := []move.Migration{{ID: "live 0", Role: "source", State: "round"}, {ID: "other", Role: "target", State: "moved"}, {ID: "live 1", Role: "source", State: "open"}}
	for i := range 100 {
		state := "moved"
		if i%2 > 0 {
			state = "failed"
		}
		moves = append(moves, move.Migration{ID: fmt.Sprint("ended ", i), Role: "source", State: state, Failure: "why"})
	}
	got := reportedMigrations(moves)
	if len(got) != 102 {
		t.Fatalf("%d moves", len(got))
	}
	for i, want := range []string{"live 1 open", "live 0 round", "ended 99 aborted", "ended 98 done"} {
		if g := got[i].Id + " " + got[i].State; g != want {
			t.Errorf("move %d is %q, want %q", i, g, want)
		}
	}
	if len(reportedMigrations(moves[:1])) != 1 || reportedMigrations(nil) != nil {
		t.Error("few moves")
	}
}

// TestRoutesFitIntoReport checks that unhealthy routes are reported first.
func TestRoutesFitIntoReport(t *testing.T) {
	why := errors.New("why")
	paths := []transport.Path{{Transport: "cuda", Err: fmt.Errorf("cuda: %w", transport.ErrUnsupportedMemory)}, {Transport: "shm", Err: why}, {Transport: "tcp"}, {Transport: "verbs", Err: fmt.Errorf("verbs: %w", transport.ErrEngineAway)}}
	for i := range 50 {
		paths = append(paths, transport.Path{Peer: policies.ReplicaID(fmt.Sprint(i)), Transport: "tcp", Rate: 5})
	}
	paths[42].Err = why
	got := reportedRoutes(paths, func(p policies.ReplicaID, name string) string { return name + " from " + string(p) })
	if len(got) != maxReportedRoutes {
		t.Fatalf("%d routes", len(got))
	}
	for i, want := range []string{" cuda unsuited cuda: " + transport.ErrUnsupportedMemory.Error(), " shm broken why", " tcp ready ", " verbs unknown verbs: " + transport.ErrEngineAway.Error(), "38 tcp held why", "0 tcp ready "} {
		if g := fmt.Sprint(got[i].Peer, " ", got[i].Transport, " ", got[i].State, " ", got[i].Reason); g != want {
			t.Errorf("route %d is %q, want %q", i, g, want)
		}
	}
	if got[0].Path != "" || got[4].Path != "tcp from 38" || got[5].BytesPerSecond != 5 || reportedRoutes(nil, nil) != nil {
		t.Errorf("%v", got[5])
	}
}
