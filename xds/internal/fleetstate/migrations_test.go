package fleetstate

import (
	"fmt"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/reporttest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

func decodeMigration(t *testing.T, list ...*api.Migration) []loadreport.Migration {
	t.Helper()
	migrations, dropped := loadreport.DecodeMigrations("r0", list)
	if dropped > 0 {
		t.Fatal("a migration of the test is not valid")
	}
	return migrations
}

// TestMigrationLog checks that later states replace earlier ones, that final states stay, and
// that each migration is counted once.
func TestMigrationLog(t *testing.T) {
	var l MigrationLog
	at := func(s int) time.Time { return reporttest.Started.Add(time.Duration(s) * time.Second) }
	l.Add(at(0), "r0", decodeMigration(t, reporttest.Migration(1, "offer"), reporttest.Migration(2, "offer")))
	if l.Running(at(-1)) != 2 || len(l.Totals()) != 0 {
		t.Errorf("%d running", l.Running(at(-1)))
	}
	l.Add(at(1), "r0", decodeMigration(t, reporttest.Migration(1, loadreport.MigrationDone)))
	l.Add(at(2), "r0", decodeMigration(t, reporttest.Migration(1, "pull"), reporttest.Migration(1, loadreport.MigrationAborted), reporttest.Migration(1, loadreport.MigrationDone)))
	odd := reporttest.Migration(3, loadreport.MigrationAborted)
	odd.Cause, odd.Method = "a new cause", "another"
	l.Add(at(3), "r0", decodeMigration(t, odd))
	got := l.Newest(time.Time{}, 10)
	if len(got) != 3 || got[0].ID != "r0/3" || got[1].ID != "r0/2" || got[2].ID != "r0/1" || got[2].State != loadreport.MigrationDone || !got[2].Reported.Equal(at(1)) {
		t.Errorf("%+v", got)
	}
	if got := l.Newest(at(0), 10); len(got) != 2 {
		t.Errorf("since the first: %+v", got)
	}
	if got := l.Newest(time.Time{}, 1); len(got) != 1 || got[0].ID != "r0/3" {
		t.Errorf("the newest: %+v", got)
	}
	totals := l.Totals()
	if len(totals) != 2 || totals[0].MigrationKind != (MigrationKind{"growth", "live", loadreport.MigrationDone}) || totals[0].Count != 1 || totals[0].Bytes != 1<<20 ||
		totals[0].Stall.Count != 1 || totals[0].Stall.Buckets[1] != 0 || totals[0].Stall.Buckets[2] != 1 ||
		totals[1].MigrationKind != (MigrationKind{"other", "other", loadreport.MigrationAborted}) || totals[1].Stall.Count != 0 {
		t.Errorf("%+v", totals)
	}
	if n := l.Running(at(0)); n != 0 {
		t.Errorf("%d running that are no longer reported", n)
	}
	pull := reporttest.Migration(4, loadreport.MigrationDone)
	pull.Cause, pull.From, pull.FrontEnd, pull.To = loadreport.CausePrefix, "r1", "r1", "r0"
	l.Add(at(3), "r0", decodeMigration(t, pull))
	if totals := l.Totals(); len(totals) != 3 || totals[2].MigrationKind != (MigrationKind{"prefix", "live", loadreport.MigrationDone}) || totals[2].Count != 1 || totals[2].Stall.Count != 0 {
		t.Errorf("with a prefix pull: %+v", totals)
	}
	for i := range 600 {
		l.Add(at(4), "r0", decodeMigration(t, reporttest.Migration(10+i, loadreport.MigrationDone)))
	}
	if got := l.Newest(time.Time{}, 1000); len(got) != maxMigrations || len(l.byID) != maxMigrations || got[0].ID != "r0/609" {
		t.Errorf("%d migrations, %d names", len(got), len(l.byID))
	}
	if totals := l.Totals(); totals[0].Count != 601 {
		t.Errorf("%d counted", totals[0].Count)
	}
}

// TestMigrationsReportedAnew checks that the migrations which a migrator reports once more after it has connected anew
// are neither counted nor listed again, also if those of others have taken their places in the log.
func TestMigrationsReportedAnew(t *testing.T) {
	var l MigrationLog
	report := func(reporter policies.ReplicaID, n int) {
		for i := range n {
			m := loadreport.Migration{ID: fmt.Sprintf("%s/%d", reporter, i), Cause: "growth", Method: "live", State: loadreport.MigrationDone}
			l.Add(reporttest.Started, reporter, []loadreport.Migration{m})
		}
	}
	report("r0", 64)
	report("r1", maxMigrations)
	report("r0", 65)
	if totals := l.Totals(); totals[0].Count != 64+maxMigrations+1 {
		t.Errorf("%d counted", totals[0].Count)
	}
	if got := l.Newest(time.Time{}, 2); got[0].ID != "r0/64" || got[1].ID != "r1/511" {
		t.Errorf("the newest: %+v", got)
	}
	report("r0", 2*maxCounted)
	l.Forget(func(id policies.ReplicaID) bool { return id == "r1" })
	if len(l.counted) != 1 || len(l.counted["r0"].hashes) != maxCounted {
		t.Errorf("%d reporters are kept, %d migrations of one", len(l.counted), len(l.counted["r0"].hashes))
	}
}
