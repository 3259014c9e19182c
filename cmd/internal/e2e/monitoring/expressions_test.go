package monitoring

import (
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// TestMissing: a metric, a label or a value that is misspelt anywhere in an expression is found.
func TestMissing(t *testing.T) {
	label := func(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }
	counter := dto.MetricType_COUNTER
	histogram := dto.MetricType_HISTOGRAM
	e := Exposed{}
	e.Add("cascade-proxy", map[string]*dto.MetricFamily{
		"a_total":   {Type: &counter, Metric: []*dto.Metric{{Label: []*dto.LabelPair{label("model", "m"), label("code", "200")}}}},
		"b_seconds": {Type: &histogram, Metric: []*dto.Metric{{Label: []*dto.LabelPair{label("replica", "r0")}}}},
	})
	known := map[string]map[string][]string{"a_total": {"code": {"503"}}}
	cases := []struct {
		query Query
		want  []string
	}{
		{Query{Text: `sum by (model, job) (rate(a_total{code=~"200|503"}[5m])) > 0 and on () up{job="cascade-proxy"}`, Labels: []string{"model"}}, nil},
		{Query{Text: `histogram_quantile(0.9, sum by (replica, le) (rate(b_seconds_bucket[5m])))`}, nil},
		{Query{Text: `a_total{code="404",colour="red"} / c_total`}, []string{`value "404" of label code of a_total`, "label colour of a_total", "metric c_total"}},
		{Query{Text: `sum by (stage) (a_total)`}, []string{"label stage of any of [a_total]"}},
		{Query{Text: `a_total * on (zone) group_left (host) b_seconds_count`}, []string{"label zone of any of [a_total b_seconds_count]", "label host of any of [a_total b_seconds_count]"}},
		{Query{Text: `b_seconds`}, []string{"metric b_seconds"}},
		{Query{Text: `a_total`, Labels: []string{"replica"}}, []string{"label replica, which is shown, of any of [a_total]"}},
	}
	var queries []Query
	for _, c := range cases {
		queries = append(queries, c.query)
	}
	queries = append(queries, Query{Text: `sum by (`})
	parsed := Parse(t, queries)
	for i, c := range cases {
		if got := e.Missing(c.query, parsed[i], known); !slices.Equal(got, c.want) {
			t.Errorf("%s: missing %q, want %q", c.query.Text, got, c.want)
		}
	}
	if got := e.Missing(Query{}, parsed[len(cases)], nil); len(got) != 1 {
		t.Errorf("an expression that cannot be parsed: %q", got)
	}
}
