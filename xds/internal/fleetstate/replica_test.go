package fleetstate

import (
	"errors"
	"strings"
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
		r.HandleReport(time.Unix(1, 0), &loadreport.Report{Note: c.note, Topology: &links.Topology{Host: c.host}}, c.sameBuckets, 0)
		if got := r.Note(); got != c.want {
			t.Errorf("%+v: note %q", c, got)
		}
	}
}

// TestReportedCapacity checks that the KV cache that a migrator reports counts once it is steady,
// also after the fleet file was read again, until the replica serves another model or its engine
// states none any more. One that holds less than a sequence of 100 tokens never counts.
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
		{time.Hour, 100, 4096, false}, {steadyKV - 1, 1 << 40, 4096, false}, {steadyKV - 1, 100, 4096, false}, // one that swings never
		{time.Hour, 99, 4096, false}, {time.Hour, 99, 4096, false}, // too small
		{time.Hour, 2048, 4096, false}, {steadyKV - 1, 2048, 4096, false}, {0, 0, 4096, false}, {1, 2048, 2048, true}, {1, 2048, 2048, false},
	} {
		now = now.Add(test.after)
		report := &loadreport.Report{Load: policies.Load{Engine: policies.EngineLoad{Capacity: test.reported}}}
		if _, resized := r.HandleReport(now, report, true, 100); resized != test.resized || r.Capacity != (policies.Capacity{KV: test.want, Batch: 8}) {
			t.Errorf("reported %d: capacity %+v, resized %v", test.reported, r.Capacity, resized)
		}
	}
	if r = configure("m"); r.Capacity.KV != 2048 {
		t.Errorf("after a reload of the file: %+v", r.Capacity)
	}
	for _, test := range []struct {
		after  time.Duration
		report loadreport.Report
		want   policies.Tokens
	}{
		{time.Hour, loadreport.Report{}, 2048}, // the engine is away
		{time.Hour, loadreport.Report{}, 2048},
		{time.Hour, loadreport.Report{EngineReady: true, Engine: loadreport.Engine{KVTokens: 2048}}, 2048}, // its metrics are late
		{time.Hour, loadreport.Report{EngineReady: true}, 2048},
		{steadyKV - 1, loadreport.Report{EngineReady: true}, 2048},
		{1, loadreport.Report{EngineReady: true}, 5000}, // another one, which states none
		{1, loadreport.Report{EngineReady: true, Load: policies.Load{Engine: policies.EngineLoad{Capacity: 3000}}}, 3000},
		{1, loadreport.Report{EngineReady: true}, 3000},
	} {
		now = now.Add(test.after)
		if _, resized := r.HandleReport(now, &test.report, true, 100); r.Capacity.KV != test.want || resized != (test.want == 5000 || test.after == 1 && test.report.Load.Engine.Capacity > 0) {
			t.Errorf("%+v: capacity %+v, resized %v", test.report.Engine, r.Capacity, resized)
		}
	}
	if r = configure("other"); r.Capacity.KV != 5000 {
		t.Errorf("of another model: %+v", r.Capacity)
	}
}

// TestSmallCapacity checks that a KV cache that holds less than one sequence is a problem that
// names both sizes, as long as it is reported.
func TestSmallCapacity(t *testing.T) {
	g, now := New(Config{Grace: time.Minute, HalfLife: time.Minute}), time.Unix(1, 0)
	g.Configure(now, []policies.Replica{{ID: "r", Model: "m", Capacity: policies.Capacity{KV: 5000, Batch: 8}}})
	r := g.Get("r")
	own := loadreport.Problem{Kind: loadreport.ProblemMemory, Text: "little"}
	for _, test := range []struct {
		kv   policies.Tokens
		want string
	}{{4095, "4095 tokens, less than one sequence of model m: plans count 5000"}, {4096, ""}, {1, "1 tokens"}} {
		r.HandleReport(now, &loadreport.Report{EngineReady: true, Problems: []loadreport.Problem{own}, Load: policies.Load{Engine: policies.EngineLoad{Capacity: test.kv}}}, true, 4096)
		got := g.Problems(now, r)
		if want := min(len(test.want), 1) + 1; len(got) != want || got[0] != own || want == 2 && (got[1].Kind != loadreport.ProblemCapacity || !strings.Contains(got[1].Text, test.want)) {
			t.Errorf("%d: %+v", test.kv, got)
		}
	}
	if got := g.Problems(now.Add(time.Hour), r); got != nil {
		t.Errorf("of an old report: %+v", got)
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
		{loadreport.Report{}, ReasonEngine, "its engine does not answer health checks: check that it runs and listens at http://127.0.0.1:8000"},
		{loadreport.Report{EngineHung: true, EngineProblem: "x"}, ReasonHung, "its engine answers health checks and makes no progress: restart it"},
	} {
		r := &Replica{Replica: policies.Replica{ID: "r", Engine: "http://127.0.0.1:8000"}}
		r.HandleReport(now, &test.report, true, 0)
		r.refresh(now, time.Minute)
		if r.Reason != test.reason || r.HealthReason() != test.text || r.Ready() != (test.reason == ReasonReady) {
			t.Errorf("%+v: %v, %q", test.report, r.Reason, r.HealthReason())
		}
	}
	if got := ReasonMismatch.String(); got != "engine_mismatch" {
		t.Error(got)
	}
}

// TestStart checks that a migrator that starts is given a moment to find its engine, which is given none when it
// ends.
func TestStart(t *testing.T) {
	now := time.Unix(100, 0)
	r := &Replica{Replica: policies.Replica{ID: "r"}}
	step := func(after time.Duration, report *loadreport.Report, want bool) {
		t.Helper()
		now = now.Add(after)
		if report != nil {
			r.HandleReport(now, report, true, 0)
		}
		r.refresh(now, time.Minute)
		if got := r.Faulty(now); got != want {
			t.Errorf("%v, %v: faulty %v, want %v", r.Health, r.Reason, got, want)
		}
	}
	ready := &loadreport.Report{EngineReady: true}
	step(0, nil, false)
	step(200*time.Millisecond, &loadreport.Report{}, false)
	step(200*time.Millisecond, ready, false)
	step(time.Second, &loadreport.Report{}, true)
	step(time.Second, ready, false)
	r = &Replica{Replica: policies.Replica{ID: "r"}}
	step(0, &loadreport.Report{}, false)
	step(startGrace-1, nil, false)
	step(1, nil, true)
}

// TestRefused checks that refused requests count from the first report on: what a front end refused before this
// process knew of it is no demand, and neither is its count after a restart.
func TestRefused(t *testing.T) {
	g := New(Config{Grace: time.Minute, HalfLife: time.Minute})
	now := time.Unix(1, 0)
	g.Configure(now, []policies.Replica{{ID: "r", Model: "m", Capacity: policies.Capacity{KV: 5000, Batch: 8}}})
	for _, step := range []struct{ reported, want uint64 }{{1000, 0}, {1010, 10}, {1010, 10}, {3, 10}, {5, 12}} {
		g.Get("r").HandleReport(now, &loadreport.Report{Replica: "r", Model: "m", Refused: step.reported}, true, 0)
		if got := g.View(now, "m").Replicas[0].Refused; got != step.want {
			t.Errorf("after a report of %d: %d refused, want %d", step.reported, got, step.want)
		}
	}
}

// TestDrainOfPrefillReplica checks that a prefill replica may be drained at any time, and the last one that decodes not.
func TestDrainOfPrefillReplica(t *testing.T) {
	g := New(Config{Grace: time.Minute, HalfLife: time.Minute})
	g.Configure(time.Unix(1, 0), []policies.Replica{{ID: "r", Model: "m"}, {ID: "p", Model: "m", Prefill: true}})
	if err := CheckDrain(g, "p"); err != nil {
		t.Error(err)
	}
	if err := CheckDrain(g, "r"); !errors.Is(err, ErrLastReplica) {
		t.Error(err)
	}
}
