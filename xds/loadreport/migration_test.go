package loadreport

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/xds/api"
)

var started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func goodMigration(n int, state string) *api.Migration {
	return &api.Migration{
		Id: fmt.Sprint("r0/", n), Request: "r2/1", Cause: "growth", FrontEnd: "r2", From: "r0", To: "r1", Method: "live", Transport: "shm",
		State: state, Rounds: 2, Tokens: 700, Bytes: 1 << 20, StallSeconds: 0.0012, Seconds: 0.5, StartedUnixMicros: started.UnixMicro(),
	}
}

func TestDecodeMigrations(t *testing.T) {
	m := goodReport()
	m.Migrations = []*api.Migration{goodMigration(1, "pull"), goodMigration(2, MigrationDone)}
	m.Residents, m.Pinned, m.PinnedSeconds, m.Streams = 5, 2, 30, 9
	m.Proposal = &api.Proposal{Epoch: 3, Low: 16, Boundary: 20}
	r, err := Decode(m)
	if err != nil || r.Note != "" || len(r.Migrations) != 2 || r.DrainProgress != (DrainProgress{5, 2, 30, 9}) || r.Proposal != (Proposal{3, 16, 20}) {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := r.Migrations[1]; got.ID != "r0/2" || got.Bytes != 1<<20 || got.Stall != 0.0012 || !got.Started.Equal(started) || !got.Ended() || r.Migrations[0].Ended() {
		t.Errorf("%+v", got)
	}
	for name, edit := range map[string]func(*api.Migration){
		"no id":           func(m *api.Migration) { m.Id = "" },
		"another's id":    func(m *api.Migration) { m.Id = "r1/4" },
		"a like id":       func(m *api.Migration) { m.Id = "r04/4" },
		"not involved":    func(m *api.Migration) { m.From = "r1" },
		"no request":      func(m *api.Migration) { m.Request = "" },
		"no state":        func(m *api.Migration) { m.State = "" },
		"long cause":      func(m *api.Migration) { m.Cause = strings.Repeat("c", 65) },
		"long id":         func(m *api.Migration) { m.Id += strings.Repeat("1", 1024) },
		"long to":         func(m *api.Migration) { m.To = strings.Repeat("r", 257) },
		"negative bytes":  func(m *api.Migration) { m.Bytes = -1 },
		"too many bytes":  func(m *api.Migration) { m.Bytes = math.MaxInt64 },
		"negative tokens": func(m *api.Migration) { m.Tokens = -1 },
		"stall NaN":       func(m *api.Migration) { m.StallSeconds = math.NaN() },
		"seconds":         func(m *api.Migration) { m.Seconds = math.Inf(1) },
		"rounds":          func(m *api.Migration) { m.Rounds = math.MaxUint32 },
	} {
		bad := goodMigration(1, MigrationDone)
		edit(bad)
		m := goodReport()
		m.Migrations = []*api.Migration{bad, goodMigration(2, MigrationDone)}
		if r, err := Decode(m); err != nil || len(r.Migrations) != 1 || r.Migrations[0].ID != "r0/2" || !strings.Contains(r.Note, "migrations") {
			t.Errorf("%s: %+v, %v", name, r.Migrations, err)
		}
	}
	for name, edit := range map[string]func(*api.Migration){
		"a front rescues": func(m *api.Migration) { m.FrontEnd, m.From = "r0", "r9" },
		"a long reason":   func(m *api.Migration) { m.Reason = strings.Repeat("ä", 400) },
		"no clock":        func(m *api.Migration) { m.StartedUnixMicros = math.MaxInt64 },
	} {
		fine := goodMigration(1, MigrationAborted)
		edit(fine)
		m := goodReport()
		m.Migrations = []*api.Migration{fine}
		if r, err := Decode(m); err != nil || len(r.Migrations) != 1 || len(r.Migrations[0].Reason) > maxReason || r.Migrations[0].Started.Year() > 9999 {
			t.Errorf("%s: %+v, %v", name, r.Migrations, err)
		}
	}
	m = goodReport()
	for i := range 70 {
		m.Migrations = append(m.Migrations, goodMigration(i, "pull"))
	}
	m.Pinned, m.PinnedSeconds = math.MaxUint32, math.NaN()
	m.Proposal = &api.Proposal{Low: -1, Boundary: 5}
	if r, err := Decode(m); err != nil || len(r.Migrations) != MaxMigrations || r.DrainProgress.Pinned != maxCount || r.DrainProgress.PinnedSeconds != 0 || r.Proposal != (Proposal{}) ||
		!strings.HasSuffix(r.Note, ": pinned, pinned_seconds, migrations") {
		t.Errorf("%d migrations, %+v, note %q, %v", len(r.Migrations), r.DrainProgress, r.Note, err)
	}
}
