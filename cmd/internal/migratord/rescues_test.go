package migratord

import (
	"errors"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/migrator/frontend"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestRescueLog checks that the control plane accepts reports of rescues, and that the log is bounded.
func TestRescueLog(t *testing.T) {
	var x rescueLog
	began := time.Unix(1e9, 0)
	x.add(frontend.Rescue{Stream: "r0/7", Epoch: 2, From: "r1", To: "r2", Length: 90, Start: began, Duration: time.Second}, "r0")
	x.add(frontend.Rescue{Stream: "r0/7", Epoch: 5, From: "r2", Length: 95, Start: began, Duration: time.Minute, Err: errors.New("no replica")}, "r0")
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
	for range 2 * maxRescues {
		x.add(frontend.Rescue{Stream: "r0/8", Epoch: 11}, "r0")
	}
	if len(x.all()) != maxRescues || before[0].Id != "r0/7#2" {
		t.Errorf("%d rescues are kept", len(x.all()))
	}
}
