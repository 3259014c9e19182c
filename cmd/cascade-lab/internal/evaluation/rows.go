package evaluation

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/report"
)

// status is how far a figure of the paper can be repeated here.
type status string

const (
	reproduced   status = "reproduced"   // what it measures does not depend on a GPU
	approximated status = "approximated" // simulated on engines that stand for the paper's
	impossible   status = "impossible"
)

// row is a figure or a claim of the paper's evaluation.
type row struct {
	label  string // in the paper's source
	figure string // as a reader finds it
	what   string
	status status
	paper  string // the paper's number
	ours   string
	// seen says of each policy whether the claim is seen here, in words that follow from the figures.
	seen string
	why  string // it is no more than the status, or how to read it
}

// rowsSection lists all rows.
func rowsSection(rows []row) webpage.Section {
	t := report.Table{Header: []string{"figure", "what", "status", "the paper", "here", "seen here", "how, and why not more"}, Left: 7}
	for _, r := range rows {
		t.Rows = append(t.Rows, []string{r.figure, r.what, string(r.status), r.paper, r.ours, r.seen, r.why})
	}
	return webpage.Section{
		ID: "paper", Title: "The paper's figures and claims, one by one", Tables: []report.Table{t},
		Paragraphs: []string{"Differences are of means over the seeds: −20 % is a fifth less. A span runs over the loads, from the lowest to the highest difference. Cascade is the default of this project, paper its preset that follows the paper."},
	}
}

// claim is a number of the paper against one of its baselines: a ratio of the paper's system to it.
type claim struct {
	name  string // of the baseline in the paper
	rival string // policy that stands for it
	span         // of the ratio, 0.33 for "reduces by 67 %"
}

// comparison is a figure of the paper in which its system is compared with others by one metric.
type comparison struct {
	metric metric
	claims []claim
	// ours returns the outcomes of a policy at each of the loads that the claim is about.
	ours func(policy string) [][]Outcome
}

// ratios returns the span of a policy's ratio to a rival over the loads.
func (c comparison) ratios(policy, rival string) span {
	s := noSpan
	a, b := c.ours(policy), c.ours(rival)
	for i := range a {
		if r := ratioOf(a[i], b[i], c.metric); r.Runs > 0 {
			s = s.with(r.Mean)
		}
	}
	return s
}

// print prints a span as the metric is compared: rates as factors, times as differences.
func (c comparison) print(s span) string {
	if c.metric.higher {
		return s.factors()
	}
	return s.changes()
}

// fill fills in the numbers of a row.
func (c comparison) fill(r row, policies ...string) row {
	var paper, ours, seen []string
	for _, one := range c.claims {
		paper = append(paper, fmt.Sprintf("%s against %s", c.print(one.span), one.name))
	}
	for _, policy := range policies {
		var parts []string
		done := map[string]bool{}
		for _, one := range c.claims {
			if !done[one.rival] {
				done[one.rival] = true
				parts = append(parts, fmt.Sprintf("%s against %s", c.print(c.ratios(policy, one.rival)), one.rival))
			}
		}
		ours = append(ours, policy+": "+strings.Join(parts, ", "))
		seen = append(seen, policy+": "+c.describe(policy))
	}
	if r.paper == "" {
		r.paper = strings.Join(paper, "; ")
	}
	r.ours, r.seen = strings.Join(ours, "; "), strings.Join(seen, "; ")
	return r
}

// describe says of each of the paper's baselines whether the claim is seen; those with the same words stand
// together.
func (c comparison) describe(policy string) string {
	names, order := map[string][]string{}, []string(nil)
	for _, one := range c.claims {
		words := c.compare(one.span, c.ratios(policy, one.rival))
		if mostStages(c.ours(policy)) == 1 && mostStages(c.ours(one.rival)) == 1 {
			words += ", both made one stage"
		}
		if names[words] == nil {
			order = append(order, words)
		}
		names[words] = append(names[words], one.name)
	}
	for i, words := range order {
		order[i] = fmt.Sprintf("%s (%s)", words, joinWords(names[words]))
	}
	return strings.Join(order, ", ")
}

// mostStages returns the most stages at the end of any run; 0 for routers.
func mostStages(runs [][]Outcome) (most int) {
	for _, outcomes := range runs {
		for _, o := range outcomes {
			most = max(most, o.Stages)
		}
	}
	return most
}

// tie is the relative difference that counts as none.
const tie = 0.03

// compare says whether a claimed ratio is seen, in a few words.
func (c comparison) compare(claimed, seen span) string {
	if seen.low > seen.high {
		return "not measured"
	}
	if c.metric.higher { // so that less is better in both cases
		claimed, seen = span{1 / claimed.high, 1 / claimed.low}, span{1 / seen.high, 1 / seen.low}
	}
	switch {
	case claimed == span{1, 1} && seen.low >= 1-tie && seen.high <= 1+tie:
		return "as claimed"
	case seen.high < claimed.low:
		return "more than claimed"
	case seen.low <= claimed.high:
		if seen.high > 1+tie {
			return "as claimed at some loads, worse at others"
		}
		if seen.high > claimed.high {
			return "as claimed at some loads, less at others"
		}
		return "as claimed"
	case seen.high < 1-tie:
		return "better, by less"
	case seen.low > 1+tie:
		return "no: it is worse"
	case seen.low >= 1-tie && seen.high <= 1+tie:
		return "no difference"
	case seen.low < 1-tie && seen.high > 1+tie:
		return "better at some loads, worse at others"
	case seen.low < 1-tie:
		return "better at some loads, by less"
	}
	return "no: worse at some loads"
}
