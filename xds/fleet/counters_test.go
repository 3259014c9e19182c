package fleet

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/internal/reporttest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// FuzzCounters checks that a file is either refused as a whole, or restored into a
// State that plans.
func FuzzCounters(f *testing.F) {
	s := testState(f, PolicyDefault)
	r := testkit.Must(loadreport.Decode(reporttest.Report()))
	settleState(s, start, Reported{r})
	data := testkit.Must(s.Counters(start).Encode())
	f.Add(data)
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"models":[{"name":"m","bytes_per_token_milli":1}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := testkit.Must(NewState(testRules(PolicyDefault)))
		if s.RestoreCounters(data) != nil {
			return
		}
		settleState(s, start, Replicas{[]policies.Replica{testReplica("r0"), testReplica("r1")}})
		for i := range 3 {
			settleState(s, start.Add(time.Duration(i)*s.rules.Period), Tick{})
		}
		m := s.Snapshot(start).Models[0]
		if err := m.Plan.Validate(); err != nil {
			t.Error(err)
		}
		if err := m.Flow.Validate(); err != nil {
			t.Error(err)
		}
	})
}
