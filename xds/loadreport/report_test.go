package loadreport

import (
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/policies/links"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/topology"
)

// goodReport returns a message that Decode accepts.
func goodReport() *api.LoadReport {
	return &api.LoadReport{
		Replica: "r0", Model: "m", Sequence: 3, EngineReady: true, BytesPerToken: 4.2, EstimateError: 0.1,
		Load: &api.Load{Running: 3, Waiting: 1, HeldTokens: 4000, PromisedTokens: 100, IterationSeconds: 0.02},
		Flow: &api.Flow{
			Edges: []int64{0, 16, 32}, Arrivals: []float64{1, 2, 3}, Tokens: []float64{10, 20, 30}, Reads: []float64{1, 2, 3},
			Prefill: []float64{1, 2, 3}, Prefill2: []float64{1, 2, 3}, Weight: []float64{.1, .2, .3}, Crossings: []float64{0, 1, 1}, Seen: 77,
		},
		Snapshot: []*api.Batch{{N: 1, SumInput: 5, SumInput2: 25, SumLength: 9}, {}, {}},
	}
}

func TestDecode(t *testing.T) {
	r, err := Decode(goodReport())
	if err != nil {
		t.Fatal(err)
	}
	if r.Replica != "r0" || r.Load.Held != 4000 || r.Flow.Arrivals[2] != 3 || r.Flow.Seen != 77 || r.Snapshot[0].SumL != 9 || !r.EngineReady {
		t.Errorf("decoded %+v", r)
	}
	if r, err := Decode(&api.LoadReport{Replica: "r", Model: "m"}); err != nil || r.EngineReady {
		t.Errorf("a report with nothing but names: %+v, %v", r, err)
	}
	for _, c := range []struct {
		name string
		edit func(*api.LoadReport)
		want string // part of the error
	}{
		{"no replica", func(m *api.LoadReport) { m.Replica = "" }, "replica"},
		{"long replica", func(m *api.LoadReport) { m.Replica = strings.Repeat("r", 257) }, "replica"},
		{"no model", func(m *api.LoadReport) { m.Model = "" }, "model"},
		{"error negative", func(m *api.LoadReport) { m.EstimateError = -1 }, "estimate_error"},
		{"edges from 1", func(m *api.LoadReport) { m.Flow.Edges[0] = 1 }, "flow"},
		{"edges fall", func(m *api.LoadReport) { m.Flow.Edges[2] = 16 }, "flow"},
		{"edges huge", func(m *api.LoadReport) { m.Flow.Edges[2] = math.MaxInt64 }, "flow"},
		{"edges too many", func(m *api.LoadReport) { m.Flow.Edges = make([]int64, 2000) }, "flow"},
		{"short column", func(m *api.LoadReport) { m.Flow.Reads = m.Flow.Reads[:2] }, "flow"},
		{"column only", func(m *api.LoadReport) { m.Flow.Edges = nil; m.Snapshot = nil }, "flow"},
		{"rate negative", func(m *api.LoadReport) { m.Flow.Tokens[1] = -1 }, "flow"},
		{"rate infinite", func(m *api.LoadReport) { m.Flow.Tokens[1] = math.Inf(1) }, "flow"},
		{"rate huge", func(m *api.LoadReport) { m.Flow.Prefill2[1] = 1e300 }, "flow"},
		{"seen huge", func(m *api.LoadReport) { m.Flow.Seen = math.MaxUint64 }, "flow"},
		{"snapshot short", func(m *api.LoadReport) { m.Snapshot = m.Snapshot[:1] }, "snapshot"},
		{"snapshot NaN", func(m *api.LoadReport) { m.Snapshot[2] = &api.Batch{N: math.NaN()} }, "snapshot"},
	} {
		m := goodReport()
		c.edit(m)
		if _, err := Decode(m); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one about %s", c.name, err, c.want)
		}
	}
}

// TestDecodeBoundsLoad checks that figures that requests can drive out of bounds do not
// make Decode refuse the report.
func TestDecodeBoundsLoad(t *testing.T) {
	for _, c := range []struct {
		field string
		edit  func(*api.LoadReport)
		check func(Report) bool
	}{
		{"running", func(m *api.LoadReport) { m.Load.Running = 1 << 30 }, func(r Report) bool { return r.Load.Running == maxCount }},
		{"waiting", func(m *api.LoadReport) { m.Load.Waiting = math.MaxUint32 }, func(r Report) bool { return r.Load.Waiting == maxCount }},
		{"held_tokens", func(m *api.LoadReport) { m.Load.HeldTokens = 1 << 50 }, func(r Report) bool { return r.Load.Held == MaxTokens }},
		{"held_tokens", func(m *api.LoadReport) { m.Load.HeldTokens = -1 }, func(r Report) bool { return r.Load.Held == 0 }},
		{"promised_tokens", func(m *api.LoadReport) { m.Load.PromisedTokens = math.MaxInt64 }, func(r Report) bool { return r.Load.Promised == MaxTokens }},
		{"iteration_seconds", func(m *api.LoadReport) { m.Load.IterationSeconds = math.NaN() }, func(r Report) bool { return r.Load.Iteration == 0 }},
		{"iteration_seconds", func(m *api.LoadReport) { m.Load.IterationSeconds = 1e6 }, func(r Report) bool { return r.Load.Iteration == 0 }},
		{"bytes_per_token", func(m *api.LoadReport) { m.BytesPerToken = math.NaN() }, func(r Report) bool { return r.BytesPerToken == 0 }},
		{"bytes_per_token", func(m *api.LoadReport) { m.BytesPerToken = 65 }, func(r Report) bool { return r.BytesPerToken == 0 }},
	} {
		m := goodReport()
		c.edit(m)
		r, err := Decode(m)
		if err != nil || !c.check(r) || !strings.HasSuffix(r.Note, ": "+c.field) || r.Load.Validate() != nil {
			t.Errorf("%s: %+v, %v", c.field, r, err)
		}
	}
	if r, err := Decode(goodReport()); err != nil || r.Note != "" {
		t.Errorf("a good report: note %q, %v", r.Note, err)
	}
}

// FuzzDecode checks that bytes from the network are either refused, or decoded to a
// report that keeps its invariants.
func FuzzDecode(f *testing.F) {
	for _, m := range seedReports() {
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(api.LoadReport)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		r, err := Decode(m)
		if err != nil {
			return
		}
		if err := r.Load.Validate(); err != nil {
			t.Error(err)
		}
		if len(r.Flow.Edges) > 0 {
			if err := r.Flow.Validate(); err != nil {
				t.Error(err)
			}
		}
		if len(r.Snapshot) != 0 && len(r.Snapshot) != len(r.Flow.Edges) {
			t.Errorf("%d batches for %d buckets", len(r.Snapshot), len(r.Flow.Edges))
		}
		if n := len(r.Migrations); n > MaxMigrations {
			t.Errorf("%d migrations of one report", n)
		}
		if n := len(r.Routes); n > maxRoutes {
			t.Errorf("%d routes of one report", n)
		}
		if r.Site != nil && r.Site.Validate() != nil {
			t.Errorf("%+v: %v", r.Site, r.Site.Validate())
		}
	})
}

func seedReports() []*api.LoadReport {
	outOfBounds := goodReport()
	outOfBounds.Load.HeldTokens = MaxTokens
	outOfBounds.Flow.Tokens[0] = MaxRate
	full := goodReport()
	full.Migrations, full.Proposal, full.Residents = []*api.Migration{goodMigration(1, MigrationDone)}, &api.Proposal{Epoch: 1, Boundary: 9}, 3
	full.Routes = []*api.Route{goodRoute("shm", RouteBroken)}
	full.Site = topology.Encode(links.Topology{Host: "a", Known: true, GPU: &links.GPU{UUID: "u", Peers: []links.Peer{{Index: 1, Read: true}}}, RDMA: &links.Port{Name: "mlx5_0"}})
	return []*api.LoadReport{goodReport(), {}, outOfBounds, full}
}
