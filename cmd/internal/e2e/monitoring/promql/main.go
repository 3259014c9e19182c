// Command promql reads PromQL expressions, a JSON array of strings, from standard input, parses them with
// Prometheus's own parser, and writes what they name: a JSON array with an Expression for each.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Expression is what one expression names.
type Expression struct {
	Error     string     `json:"error,omitempty"` // of the parser; the other fields are then empty
	Selectors []Selector `json:"selectors"`
	Groups    []Group    `json:"groups"`
}

// Selector is a selector of series.
type Selector struct {
	Metric   string    `json:"metric"`
	Matchers []Matcher `json:"matchers"` // those of the name excepted
}

// Matcher is a condition on a label.
type Matcher struct {
	Label string `json:"label"`
	Type  string `json:"type"` // =, !=, =~ or !~
	Value string `json:"value"`
}

// Group is the labels that an aggregation keeps, or by which the sides of an operator are matched, and the metrics below it.
type Group struct {
	Labels  []string `json:"labels"`
	Metrics []string `json:"metrics"`
}

func main() {
	var texts []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		fmt.Fprintln(os.Stderr, "promql: standard input:", err)
		os.Exit(1)
	}
	out := make([]Expression, len(texts))
	for i, text := range texts {
		out[i] = describe(text)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

func describe(text string) (out Expression) {
	root, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return Expression{Error: err.Error()}
	}
	parser.Inspect(root, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			s := Selector{Metric: n.Name}
			for _, m := range n.LabelMatchers {
				if m.Name != labels.MetricName {
					s.Matchers = append(s.Matchers, Matcher{m.Name, m.Type.String(), m.Value})
				}
			}
			out.Selectors = append(out.Selectors, s)
		case *parser.AggregateExpr:
			out.addGroup(n.Grouping, n)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				out.addGroup(slices.Concat(n.VectorMatching.MatchingLabels, n.VectorMatching.Include), n)
			}
		}
		return nil
	})
	return out
}

func (e *Expression) addGroup(names []string, below parser.Node) {
	if len(names) == 0 {
		return
	}
	g := Group{Labels: names}
	parser.Inspect(below, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			g.Metrics = append(g.Metrics, s.Name)
		}
		return nil
	})
	e.Groups = append(e.Groups, g)
}
