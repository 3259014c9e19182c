package monitoring

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Named is what one expression names; the command promql writes it.
type Named struct {
	Error     string `json:"error"` // of the parser
	Selectors []struct {
		Metric   string    `json:"metric"`
		Matchers []Matcher `json:"matchers"`
	} `json:"selectors"`
	Groups []struct {
		Labels  []string `json:"labels"`
		Metrics []string `json:"metrics"`
	} `json:"groups"`
}

// Matcher is a condition on a label.
type Matcher struct {
	Label string `json:"label"`
	Type  string `json:"type"` // =, !=, =~ or !~
	Value string `json:"value"`
}

// Parse returns what expressions name. It runs the command promql, a module of its own, which Go builds once.
func Parse(t testing.TB, queries []Query) (out []Named) {
	t.Helper()
	texts := make([]string, len(queries))
	for i, q := range queries {
		texts[i] = q.Text
	}
	cmd := exec.Command("go", "run", "-C", filepath.Join(testkit.Root(t), "cmd", "internal", "e2e", "monitoring", "promql"), ".")
	cmd.Stdin = bytes.NewReader(testkit.Must(json.Marshal(texts)))
	text, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("%v: %v\n%s", cmd, err, exit.Stderr)
	}
	testkit.NoError(t, err)
	testkit.NoError(t, json.Unmarshal(text, &out))
	if len(out) != len(queries) {
		t.Fatalf("%v: %d results of %d expressions", cmd, len(out), len(queries))
	}
	return out
}

// Exposed is the metrics that targets expose, as Prometheus names them: the values of their labels, by metric and label.
type Exposed map[string]map[string]map[string]bool

// Synthetic are the metrics that Prometheus itself makes of each target.
var Synthetic = []string{"up"}

// Add adds the families of a target of a job.
func (e Exposed) Add(job string, families map[string]*dto.MetricFamily) {
	target := []*dto.LabelPair{{Name: new("job"), Value: &job}, {Name: new("instance"), Value: new("host:1")}}
	for _, name := range Synthetic {
		e.add(name, target)
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			labels := slices.Concat(m.GetLabel(), target)
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				e.add(name+"_bucket", append(labels, &dto.LabelPair{Name: new("le"), Value: new("+Inf")}))
				fallthrough
			case dto.MetricType_SUMMARY:
				e.add(name+"_sum", labels)
				e.add(name+"_count", labels)
			default:
				e.add(name, labels)
			}
		}
	}
}

func (e Exposed) add(name string, labels []*dto.LabelPair) {
	if e[name] == nil {
		e[name] = map[string]map[string]bool{}
	}
	for _, l := range labels {
		if e[name][l.GetName()] == nil {
			e[name][l.GetName()] = map[string]bool{}
		}
		e[name][l.GetName()][l.GetValue()] = true
	}
}

// Missing returns what an expression names and no target exposes: metrics, labels, and values of labels that a
// selector asks for by "=". known has the values of labels that are not exposed now and may be, by metric and
// label; known values of a regular expression are those between its bars.
func (e Exposed) Missing(q Query, n Named, known map[string]map[string][]string) (out []string) {
	if n.Error != "" {
		return []string{"parse: " + n.Error}
	}
	note := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	onAny := func(label string, metrics []string) bool {
		return slices.ContainsFunc(metrics, func(m string) bool { return e[m][label] != nil })
	}
	var all []string
	for _, s := range n.Selectors {
		all = append(all, s.Metric)
		if e[s.Metric] == nil {
			note("metric %s", s.Metric)
			continue
		}
		for _, m := range s.Matchers {
			values := e[s.Metric][m.Label]
			if values == nil {
				note("label %s of %s", m.Label, s.Metric)
				continue
			}
			for _, v := range m.values() {
				if !values[v] && !slices.Contains(known[s.Metric][m.Label], v) {
					note("value %q of label %s of %s", v, m.Label, s.Metric)
				}
			}
		}
	}
	for _, g := range n.Groups {
		for _, label := range g.Labels {
			if !onAny(label, g.Metrics) {
				note("label %s of any of %v", label, g.Metrics)
			}
		}
	}
	for _, label := range q.Labels {
		if !onAny(label, all) {
			note("label %s, which is shown, of any of %v", label, all)
		}
	}
	return out
}

// alternatives matches a regular expression that is a list of words.
var alternatives = regexp.MustCompile(`^[\w|]+$`)

// values returns the values that the matcher names one by one.
func (m Matcher) values() []string {
	switch {
	case m.Type == "=" || m.Type == "!=":
		return []string{m.Value}
	case alternatives.MatchString(m.Value):
		return regexp.MustCompile(`\|`).Split(m.Value, -1)
	}
	return nil
}
