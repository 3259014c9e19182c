package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// The files below deploy.
const (
	RulesFile     = "prometheus/alerts.yaml"
	RuleTestsFile = "prometheus/alerts_test.yaml"
	DashboardFile = "grafana/cascade.json"
	RunbookFile   = "runbook.md"
)

// Alert is a rule.
type Alert struct {
	Name        string            `yaml:"alert"`
	Expression  string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// Alerts returns the alerts of the rules, in their order.
func Alerts(t testing.TB) (out []Alert) {
	t.Helper()
	var file struct {
		Groups []struct {
			Name  string  `yaml:"name"`
			Rules []Alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	testkit.NoError(t, yaml.UnmarshalWithOptions(Deployed(t, RulesFile), &file, yaml.DisallowUnknownField()))
	for _, g := range file.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

// Deployed returns a file below deploy.
func Deployed(t testing.TB, name string) []byte {
	t.Helper()
	return testkit.Must(os.ReadFile(filepath.Join(testkit.Root(t), "deploy", filepath.FromSlash(name))))
}

// Panel is a panel of the dashboard, or the query of a variable.
type Panel struct {
	Title   string   `json:"title"`
	Type    string   `json:"type"`
	Targets []Target `json:"targets"`
}

// Target is a query of a panel.
type Target struct {
	Expression string `json:"expr"`
	Legend     string `json:"legendFormat"`
	Datasource struct {
		UID string `json:"uid"`
	} `json:"datasource"`
}

// Dashboard is the part of the dashboard that is checked.
type Dashboard struct {
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []Panel `json:"panels"`
	Templating    struct {
		List []Variable `json:"list"`
	} `json:"templating"`
}

// Variable is what a user of the dashboard chooses.
type Variable struct {
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	Query      json.RawMessage `json:"query"`
	Definition string          `json:"definition"`
}

// ReadDashboard returns the dashboard.
func ReadDashboard(t testing.TB) (d Dashboard) {
	t.Helper()
	testkit.NoError(t, json.Unmarshal(Deployed(t, DashboardFile), &d))
	return d
}

// Query is an expression of the rules or of the dashboard.
type Query struct {
	From string // where it is, for the messages of tests
	Text string // with Grafana's variables replaced
	// Labels are those that texts beside the expression show: {{stage}} in a legend.
	Labels []string
}

var (
	shownLabel = regexp.MustCompile(`{{\s*(?:\$labels\.)?(\w+)\s*}}`)
	// labelValues is a variable's query of Grafana.
	labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)
	// variables are Grafana's, by what they are replaced with.
	variables = strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$__range", "1h", "$model", ".*")
)

// Queries returns the expressions of all alerts and panels.
func Queries(t testing.TB) (out []Query) {
	t.Helper()
	shown := func(text string) (labels []string) {
		for _, m := range shownLabel.FindAllStringSubmatch(text, -1) {
			labels = append(labels, m[1])
		}
		return labels
	}
	for _, a := range Alerts(t) {
		out = append(out, Query{From: "alert " + a.Name, Text: a.Expression, Labels: shown(a.Annotations["summary"])})
	}
	d := ReadDashboard(t)
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			out = append(out, Query{From: "panel " + p.Title, Text: variables.Replace(target.Expression), Labels: shown(target.Legend)})
		}
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := labelValues.FindStringSubmatch(v.Definition)
		if m == nil {
			t.Fatalf("variable %s: the query %q is not label_values(METRIC, LABEL)", v.Name, v.Definition)
		}
		out = append(out, Query{From: "variable " + v.Name, Text: m[1], Labels: []string{m[2]}})
	}
	return out
}
