package fleet

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/internal/reporttest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// FuzzReport checks that bytes from the network are either refused, or decoded to a
// report from which a State makes valid plans and weights.
func FuzzReport(f *testing.F) {
	for _, m := range reporttest.Seeds() {
		b := testkit.Must(proto.Marshal(m))
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(api.LoadReport)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		r, err := loadreport.Decode(m)
		if err != nil {
			return
		}
		var log fleetstate.MigrationLog
		log.Add(start, r.Replica, r.Migrations)
		if n := len(log.Newest(time.Time{}, 1000)); n > loadreport.MaxMigrations {
			t.Errorf("%d migrations of one report", n)
		}
		s := stagedWithLinks(t)
		r.Replica, r.Model = "r0", "m"
		now := start
		for range 3 {
			now = now.Add(s.rules.Period)
			settleState(s, now, Reported{r})
			settleState(s, now, Tick{})
		}
		snap := s.Snapshot(now)
		if err := snap.Models[0].Plan.Validate(); err != nil {
			t.Error(err)
		}
		if err := snap.Models[0].Flow.Validate(); err != nil {
			t.Error(err)
		}
	})
}

// TestSeenNeverDecreases checks that the requests of a model do not decrease, although a front end counts up to the bound
// and begins anew.
func TestSeenNeverDecreases(t *testing.T) {
	s, last := testState(t, PolicyDefault), uint64(0)
	for _, seen := range []uint64{loadreport.MaxSeen, 0, loadreport.MaxSeen, 0, 5} {
		settleState(s, start, Reported{loadreport.Report{Replica: "r0", Model: "m", EngineReady: true, Flow: policies.Flow{Seen: seen}}})
		now := s.Snapshot(start).Models[0].Seen
		if now < last {
			t.Errorf("%d requests after %d", now, last)
		}
		last = now
	}
}
