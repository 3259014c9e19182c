package loadreport_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/internal/reporttest"
	"github.com/cascadeinfer/cascade/xds/loadreport"
)

// TestDecode runs testdata/*.txt (package datadriven; -rewrite rewrites the expected
// output). The command decode decodes a good report, with so many migrations, routes or
// length buckets, after the edits in the lines below it (testkit.EditMessage), and prints what became of it.
func TestDecode(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			m := reporttest.Report()
			for _, arg := range d.CmdArgs {
				var n int
				arg.Scan(t, 0, &n)
				switch arg.Key {
				case "migrations":
					for i := range n {
						m.Migrations = append(m.Migrations, reporttest.Migration(i, loadreport.MigrationDone))
					}
				case "routes":
					m.Routes = slices.Repeat([]*api.Route{reporttest.Route("shm", loadreport.RouteHeld)}, n)
				case "edges":
					m.Flow.Edges = make([]int64, n)
				}
			}
			m, err := testkit.EditMessage(m, strings.FieldsFunc(d.Input, func(r rune) bool { return r == '\n' })...)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			r, err := loadreport.Decode(m)
			if err != nil {
				return err.Error() + "\n"
			}
			return describe(t, r)
		})
	})
}

func describe(t *testing.T, r loadreport.Report) string {
	t.Helper()
	if err := r.Load.Validate(); err != nil {
		t.Error(err)
	}
	var out strings.Builder
	engine := r.Load.Engine
	r.Load.Engine = policies.EngineLoad{}
	load := strings.Replace(fmt.Sprintf("%+v", r.Load), fmt.Sprintf(" Engine:%+v", r.Load.Engine), "", 1)
	fmt.Fprintf(&out, "%s of %s: %s, %v bytes/token, %d seen, ready %v\n", r.Replica, r.Model, load, r.BytesPerToken, r.Flow.Seen, r.EngineReady)
	if engine != (policies.EngineLoad{}) || r.Engine != (loadreport.Engine{}) || r.EngineProblem != "" {
		fmt.Fprintf(&out, "engine %+v, load %+v, problem %q\n", r.Engine, engine, r.EngineProblem)
	}
	if r.KnownPrefixes != (loadreport.KnownPrefixes{}) {
		fmt.Fprintf(&out, "prefixes %+v\n", r.KnownPrefixes)
	}
	if len(r.Snapshot) > 0 {
		fmt.Fprintf(&out, "arrivals %v, in flight %+v\n", r.Flow.Arrivals, r.Snapshot[0])
	}
	if r.DrainProgress != (loadreport.DrainProgress{}) {
		fmt.Fprintf(&out, "drain %+v\n", r.DrainProgress)
	}
	if r.Proposal != (partition.BoundaryProposal{}) {
		fmt.Fprintf(&out, "proposal %+v\n", r.Proposal)
	}
	for i, m := range r.Migrations {
		if i < 2 {
			fmt.Fprintf(&out, "migration %s of %s, %s, %s to %s: %s, ended %v, %d bytes, stall %v, started %v, reason of %d bytes\n",
				m.ID, m.Request, m.FrontEnd, m.From, m.To, m.State, m.Ended(), m.Bytes, m.Stall, m.Started, len(m.Reason))
		}
	}
	for i, p := range r.Routes {
		if len(p.Reason) > 20 {
			p.Reason = fmt.Sprint(len(p.Reason), " bytes")
		}
		if i < 2 {
			fmt.Fprintf(&out, "route %+v\n", p)
		}
	}
	if n := max(len(r.Migrations), len(r.Routes)); n > 2 {
		fmt.Fprintf(&out, "%d in all\n", n)
	}
	if r.LoadBounded {
		out.WriteString("the load was bounded\n")
	}
	if r.Note != "" {
		out.WriteString(r.Note + "\n")
	}
	return out.String()
}

// FuzzDecode checks that bytes from the network are either refused, or decoded to a
// report that keeps its invariants.
func FuzzDecode(f *testing.F) {
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
		if n := len(r.Migrations); n > loadreport.MaxMigrations {
			t.Errorf("%d migrations of one report", n)
		}
		if n := len(r.Routes); n > loadreport.MaxRoutes {
			t.Errorf("%d routes of one report", n)
		}
		if r.Topology != nil && r.Topology.Validate() != nil {
			t.Errorf("%+v: %v", r.Topology, r.Topology.Validate())
		}
	})
}
