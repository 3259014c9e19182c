package policies_test

import (
	"testing"

	"github.com/cascadeinfer/cascade/policies"
)

func TestPosition(t *testing.T) {
	p := policies.Occupancy{Capacity: 100, Held: 20, Promised: 30, Incoming: 40}
	if p.Load() != 90 || !p.Fits(10) || p.Fits(11) {
		t.Errorf("load %v", p.Load())
	}
	p.Draining = true
	if p.Fits(0) {
		t.Error("a draining replica takes a request")
	}
	if (policies.Occupancy{}).Fits(1) {
		t.Error("an unknown capacity takes a request")
	}
}

func TestCause(t *testing.T) {
	got := ""
	for c := policies.MigrationCause(0); c < 8; c++ {
		got += c.String() + ","
	}
	if got != "unknown cause,growth,outlier,drain,spill,prefill,cheaper,unknown cause," {
		t.Error(got)
	}
}
