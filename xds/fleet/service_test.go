package fleet

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestServiceMeter checks that a minute's service is what was counted within it, and that a replica that leaves with
// its counts makes no negative number.
func TestServiceMeter(t *testing.T) {
	var m serviceMeter
	now := time.Unix(1000, 0)
	var total Service
	for second := range 100 { // each second one answer, and a refusal and a failure in the first ten
		m.step(now.Add(time.Duration(second)*time.Second), total)
		total.FirstToken.Add(100_000)
		if second < 10 {
			total.Refused++
			total.Failed++
		}
	}
	if n := m.last.FirstToken.Total(); n < 59 || n > 66 || m.last.Refused != 0 || m.last.Failed != 0 {
		t.Errorf("after 100 s: %d answers, %d refused, %d failed", n, m.last.Refused, m.last.Failed)
	}
	if len(m.counts.samples) > 14 {
		t.Errorf("%d samples are kept", len(m.counts.samples))
	}
	m.step(now.Add(100*time.Second), Service{Service: loadreport.Service{Failed: 4, FirstToken: policies.LatencyCounts{3}}, Refused: 1})
	if m.last.FirstToken.Total() != 0 || m.last.Failed != 0 || m.last.Refused != 0 {
		t.Errorf("after a replica has left: %+v", m.last)
	}
	m.step(now.Add(101*time.Second), Service{Service: loadreport.Service{Failed: 6, FirstToken: policies.LatencyCounts{4}}, Refused: 3})
	if m.last.FirstToken.Total() != 1 || m.last.Failed != 2 || m.last.Refused != 2 {
		t.Errorf("a second later: %+v", m.last)
	}
}
