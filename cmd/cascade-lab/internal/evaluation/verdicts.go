package evaluation

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/report"
)

// tally counts verdicts.
type tally struct{ better, worse, undecided int }

func (t tally) total() int { return t.better + t.worse + t.undecided }

func tallyOf(verdicts []verdict, which func(verdict) bool) (t tally) {
	for _, v := range verdicts {
		if !which(v) {
			continue
		}
		switch v.judge() {
		case interval.Below:
			t.better++
		case interval.Above:
			t.worse++
		default:
			t.undecided++
		}
	}
	return t
}

// countVerdicts sums all verdicts up.
func countVerdicts(verdicts []verdict, size Size) string {
	t := tallyOf(verdicts, func(verdict) bool { return true })
	if size.RouterSeeds < interval.MinRuns {
		return "No comparison with a router is decided: there are too few seeds."
	}
	return fmt.Sprintf("Against the best of %s at each point, by each figure on its own, Cascade is better in %d of %d comparisons, worse in %d, and in %d the intervals do not decide.", joinWords(rivals), t.better, t.total(), t.worse, t.undecided)
}

// verdictSection says where Cascade loses: by figure, and the worst places first.
func verdictSection(verdicts []verdict, size Size) webpage.Section {
	s := webpage.Section{ID: "losses", Title: "Where Cascade loses"}
	if size.RouterSeeds < interval.MinRuns {
		s.Paragraphs = append(s.Paragraphs, fmt.Sprintf("No verdicts: they need %d seeds, and this report has %d. The ratios are below, by workload.", interval.MinRuns, size.RouterSeeds))
		return s
	}
	losses := slices.DeleteFunc(slices.Clone(verdicts), func(v verdict) bool { return v.judge() != interval.Above })
	slices.SortStableFunc(losses, func(a, b verdict) int { return cmp.Compare(b.loss(), a.loss()) })
	const most = 25
	if len(losses) == 0 {
		s.Paragraphs = append(s.Paragraphs, "At no point is Cascade worse than the best rival by an interval that excludes a tie.")
	} else {
		s.Paragraphs = append(s.Paragraphs, fmt.Sprintf("It is worse than the best rival in %d comparisons. The %d largest losses:", len(losses), min(most, len(losses))))
	}
	for _, v := range losses[:min(most, len(losses))] {
		s.List = append(s.List, v.sentence())
	}
	s.Tables = append(s.Tables, tallyTable("By figure", "figure", verdicts, func(v verdict) string { return v.metric.name }),
		tallyTable("By workload and load", "workload", verdicts, func(v verdict) string { return v.workload + ", load " + report.FormatNumber(v.load) }),
		tallyTable("By attention case", "case", verdicts, func(v verdict) string { return caseName(v.attention) }))
	return s
}

// loss is how much worse Cascade is, as a factor.
func (v verdict) loss() float64 {
	if v.metric.higher {
		return 1 / v.ratio.Mean
	}
	return v.ratio.Mean
}

// sentence says what a loss is.
func (v verdict) sentence() string {
	return fmt.Sprintf("%s: by %s Cascade loses to %s, × %s (%s–%s).", v.point, v.metric.name, v.rival, report.FormatNumber(v.ratio.Mean), report.FormatNumber(v.ratio.Low), report.FormatNumber(v.ratio.High))
}

// tallyTable counts verdicts by a key, in the order of its first appearance.
func tallyTable(title, name string, verdicts []verdict, key func(verdict) string) report.Table {
	t := report.Table{Title: title, Header: []string{name, "better", "undecided", "worse"}, Left: 1}
	var keys []string
	for _, v := range verdicts {
		if k := key(v); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	for _, k := range keys {
		x := tallyOf(verdicts, func(v verdict) bool { return key(v) == k })
		t.Rows = append(t.Rows, []string{k, fmt.Sprint(x.better), fmt.Sprint(x.undecided), fmt.Sprint(x.worse)})
	}
	return t
}
