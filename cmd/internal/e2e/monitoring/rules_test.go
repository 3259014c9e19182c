package monitoring

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestPromtool: Prometheus accepts the rules and the scrape configuration, and each alert fires when it should.
func TestPromtool(t *testing.T) {
	dir := filepath.Join(testkit.Root(t), "deploy", "prometheus")
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}, {"check", "config", "scrape.yaml"}} {
		if out, err := Promtool(t, dir, nil, args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestAlertsAreTested: the tests of promtool have a case in which each alert fires, and one in which it does not.
func TestAlertsAreTested(t *testing.T) {
	var file struct {
		Tests []struct {
			Cases []struct {
				Alert string `yaml:"alertname"`
				Fires []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	testkit.NoError(t, yaml.Unmarshal(Deployed(t, RuleTestsFile), &file))
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Cases {
			if len(c.Fires) > 0 {
				fires[c.Alert] = true
			} else {
				quiet[c.Alert] = true
			}
		}
	}
	alerts := Alerts(t)
	if len(alerts) < 30 {
		t.Errorf("read %d alerts: the test looks in the wrong place", len(alerts))
	}
	for _, a := range alerts {
		if !fires[a.Name] || !quiet[a.Name] {
			t.Errorf("%s: tested that it fires: %v, that it does not: %v", a.Name, fires[a.Name], quiet[a.Name])
		}
		if s := a.Labels["severity"]; s != "page" && s != "ticket" {
			t.Errorf("%s: severity %q: must be page or ticket", a.Name, s)
		}
		if a.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", a.Name)
		}
	}
}

// faultKinds returns the kinds of faults that the control plane and the daemons report: the constants that say so.
func faultKinds(t *testing.T) (kinds []string) {
	t.Helper()
	for file, prefix := range map[string]string{"xds/control/faults.go": "Fault", "xds/loadreport/problem.go": "Problem"} {
		parsed := testkit.Must(parser.ParseFile(token.NewFileSet(), filepath.Join(testkit.Root(t), filepath.FromSlash(file)), nil, parser.SkipObjectResolution))
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if len(v.Values) != 1 || !strings.HasPrefix(v.Names[0].Name, prefix) || v.Names[0].Name == "ProblemsField" {
					continue
				}
				if lit, ok := v.Values[0].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					kinds = append(kinds, testkit.Must(strconv.Unquote(lit.Value)))
				}
			}
		}
	}
	if len(kinds) < 17 {
		t.Fatalf("found the kinds of faults %q: the test looks in the wrong place", kinds)
	}
	return kinds
}

// TestFaultsHaveAlerts: each kind of fault has an alert of its own, which CascadeOtherFault leaves out.
func TestFaultsHaveAlerts(t *testing.T) {
	alerts := Alerts(t)
	var queries []Query
	for _, a := range alerts {
		queries = append(queries, Query{From: a.Name, Text: a.Expression})
	}
	var own, left []string
	for i, n := range Parse(t, queries) {
		for _, s := range n.Selectors {
			for _, m := range s.Matchers {
				switch {
				case s.Metric != "cascade_fault" || m.Label != "kind":
				case strings.HasPrefix(m.Type, "!"):
					left = append(left, m.values()...)
				default:
					own = append(own, m.values()...)
				}
			}
		}
		if n.Error != "" {
			t.Errorf("%s: %s", alerts[i].Name, n.Error)
		}
	}
	kinds := faultKinds(t)
	for _, list := range []*[]string{&own, &left, &kinds} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	if !slices.Equal(own, kinds) || !slices.Equal(left, kinds) {
		t.Errorf("kinds of faults: %q\nwith alerts: %q\nleft out by CascadeOtherFault: %q", kinds, own, left)
	}
}

// TestDashboard: every panel asks the data source that the user chooses, and the parts that operators look for are there.
func TestDashboard(t *testing.T) {
	d := ReadDashboard(t)
	if d.SchemaVersion < 39 { // of Grafana 10.4
		t.Errorf("schema version %d", d.SchemaVersion)
	}
	if !slices.ContainsFunc(d.Templating.List, func(v Variable) bool {
		return v.Name == "datasource" && v.Type == "datasource" && string(v.Query) == `"prometheus"`
	}) {
		t.Error("no variable for the data source")
	}
	var rows []string
	for _, p := range d.Panels {
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %s asks for nothing", p.Title)
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %s asks the data source %q", p.Title, target.Datasource.UID)
			}
		}
	}
	want := []string{"Fleet", "Stages", "Load of the replicas", "Latency by stage", "Migrations and stalls", "Delivery of configuration (xDS) by proxy", "Policies", "Capacity"}
	if !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}
