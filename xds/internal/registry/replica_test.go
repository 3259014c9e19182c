package registry

import (
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestNote checks which of several faults of a report is shown: buckets that do not match
// come first, because they cost the flow; then what the report says itself; then a host
// that differs from the configured one.
func TestNote(t *testing.T) {
	const buckets = "flow ignored: its buckets are not those of the control plane; configure the same context for both"
	for _, c := range []struct {
		note, host  string
		sameBuckets bool
		want        string
	}{
		{"", "h", true, ""},
		{"", "", true, ""},
		{"", "other", true, "it reports that it is on host other, the configuration says h"},
		{"flow ignored: negative", "h", true, "flow ignored: negative"},
		{"flow ignored: negative", "other", true, "flow ignored: negative"},
		{"", "other", false, buckets},
		{"flow ignored: negative", "other", false, buckets},
	} {
		r := &Replica{Replica: policies.Replica{ID: "r", Host: "h"}}
		r.HandleReport(time.Unix(1, 0), &loadreport.Report{Note: c.note, Topology: &links.Topology{Host: c.host}}, c.sameBuckets)
		if got := r.Note(); got != c.want {
			t.Errorf("%+v: note %q", c, got)
		}
	}
}

// TestReportedCapacity checks that the KV cache that a migrator reports counts once it is steady,
// also after the fleet file was read again, until the replica serves another model.
func TestReportedCapacity(t *testing.T) {
	g := New(Config{Grace: time.Minute, HalfLife: time.Minute})
	now := time.Unix(1, 0)
	configure := func(model string) *Replica {
		g.Configure(now, []policies.Replica{{ID: "r", Model: model, Capacity: policies.Capacity{KV: 5000, Batch: 8}}})
		return g.Get("r")
	}
	r := configure("m")
	for _, test := range []struct {
		after          time.Duration
		reported, want policies.Tokens
		resized        bool
	}{
		{0, 0, 5000, false}, {0, 4096, 4096, true}, {0, 4096, 4096, false}, {0, 0, 4096, false}, // the first one at once
		{time.Hour, 1, 4096, false}, {steadyKV - 1, 1 << 40, 4096, false}, {steadyKV - 1, 1, 4096, false}, // one that swings never
		{time.Hour, 2048, 4096, false}, {steadyKV - 1, 2048, 4096, false}, {0, 0, 4096, false}, {1, 2048, 2048, true}, {1, 2048, 2048, false},
	} {
		now = now.Add(test.after)
		report := &loadreport.Report{Load: policies.Load{Engine: policies.EngineLoad{Capacity: test.reported}}}
		if _, resized := r.HandleReport(now, report, true); resized != test.resized || r.Capacity != (policies.Capacity{KV: test.want, Batch: 8}) {
			t.Errorf("reported %d: capacity %+v, resized %v", test.reported, r.Capacity, resized)
		}
	}
	if r = configure("m"); r.Capacity.KV != 2048 {
		t.Errorf("after a reload of the file: %+v", r.Capacity)
	}
	if r = configure("other"); r.Capacity.KV != 5000 {
		t.Errorf("of another model: %+v", r.Capacity)
	}
}

// TestMismatchReason checks that a replica whose engine is not the expected one says so, and one
// whose engine does not answer does not repeat what its former engine was.
func TestMismatchReason(t *testing.T) {
	now := time.Unix(1, 0)
	for _, test := range []struct {
		report loadreport.Report
		reason Reason
		text   string
	}{
		{loadreport.Report{EngineReady: true}, ReasonReady, ""},
		{loadreport.Report{EngineProblem: "the engine serves another model"}, ReasonMismatch, "the engine serves another model"},
		{loadreport.Report{}, ReasonEngine, "its engine does not answer health checks"},
		{loadreport.Report{EngineHung: true, EngineProblem: "x"}, ReasonHung, "its engine answers health checks and makes no progress: restart it"},
	} {
		r := &Replica{Replica: policies.Replica{ID: "r"}}
		r.HandleReport(now, &test.report, true)
		r.refresh(now, time.Minute)
		if r.Reason != test.reason || r.HealthReason() != test.text || r.Ready() != (test.reason == ReasonReady) {
			t.Errorf("%+v: %v, %q", test.report, r.Reason, r.HealthReason())
		}
	}
	if got := ReasonMismatch.String(); got != "engine_mismatch" {
		t.Error(got)
	}
}
