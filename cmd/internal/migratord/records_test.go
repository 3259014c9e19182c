package migratord

import (
	"errors"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestRescueRecords checks that the control plane accepts reports of rescues, and that the log is bounded.
func TestRescueRecords(t *testing.T) {
	var x recordLog
	began := time.Unix(1e9, 0)
	x.add(encodeRescue(frontend.Rescue{Stream: "r0/7", Epoch: 2, From: "r1", To: "r2", Length: 90, Start: began, Duration: time.Second}, "r0"))
	x.add(encodeRescue(frontend.Rescue{Stream: "r0/7", Epoch: 5, From: "r2", Length: 95, Start: began, Duration: time.Minute, Err: errors.New("no replica")}, "r0"))
	r, err := loadreport.Decode(&api.LoadReport{Replica: "r0", Model: "m", Migrations: x.all()})
	if err != nil || r.Note != "" || len(r.Migrations) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	saved, lost := r.Migrations[0], r.Migrations[1]
	if saved.Cause != "engine lost" || saved.State != loadreport.MigrationDone || saved.From != "r1" || saved.To != "r2" || saved.FrontEnd != "r0" || saved.Stall != 1 || saved.Tokens != 90 || !saved.Started.Equal(began) {
		t.Errorf("%+v", saved)
	}
	if lost.ID == saved.ID || lost.State != loadreport.MigrationAborted || lost.Reason != "no replica" || lost.To != "" {
		t.Errorf("%+v", lost)
	}
	before := x.all()
	for range 2 * maxRecords {
		x.add(encodeRescue(frontend.Rescue{Stream: "r0/8", Epoch: 11}, "r0"))
	}
	if len(x.all()) != maxRecords || before[0].Id != "r0/7#2" {
		t.Errorf("%d records are kept", len(x.all()))
	}
}

// TestPullRecords checks that the control plane accepts reports of prefix pulls, of requests of other front ends
// and of requests without a name, too, and of no replica but the one that pulled.
func TestPullRecords(t *testing.T) {
	began := time.Unix(1e9, 0)
	list := []*api.Migration{
		encodePull(frontend.PulledPrefix{Request: "r0/7", FrontEnd: "r0", Holder: "r1", Transport: "shm", Tokens: 1024, Start: began, Duration: time.Second}, "r2", 1000),
		encodePull(frontend.PulledPrefix{FrontEnd: "r2", Holder: "r1", Handoff: true, Tokens: 512, Start: began, Duration: time.Second, Err: errors.New("busy")}, "r2", 1000),
	}
	r, err := loadreport.Decode(&api.LoadReport{Replica: "r2", Model: "m", Migrations: list})
	if err != nil || r.Note != "" || len(r.Migrations) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	want := loadreport.Migration{ID: r.Migrations[0].ID, Request: "r0/7", Cause: "prefix", FrontEnd: "r0", From: "r1", To: "r2", Method: "live", Transport: "shm", State: loadreport.MigrationDone,
		Rounds: 1, Tokens: 1024, Bytes: 1_024_000, Seconds: 1, Started: began.UTC()}
	if r.Migrations[0] != want {
		t.Errorf("%+v, want %+v", r.Migrations[0], want)
	}
	if m := r.Migrations[1]; m.ID == want.ID || m.Request != m.ID || m.Method != "handoff" || m.State != loadreport.MigrationAborted || m.Reason != "busy" || m.Bytes != 0 {
		t.Errorf("%+v", m)
	}
	if r, err := loadreport.Decode(&api.LoadReport{Replica: "r1", Model: "m", Migrations: list}); err != nil || len(r.Migrations) != 0 {
		t.Errorf("the holder reports them: %+v, %v", r.Migrations, err)
	}
}
