package frontier

import (
	"fmt"
	"math"
	"strconv"

	"github.com/cascadeinfer/cascade/engine/report"
)

// figuresTable lists every system of every cell.
func figuresTable(cells []cell) report.Table {
	t := report.Table{
		Title:  "Normalised latency and TTFT, in ms",
		Header: []string{"workload", "replicas", "load", "system", "stages", "mean", "longest decile p99", "others p50", "others p95", "others TTFT p50", "others TTFT p95"}, Left: 4,
	}
	ms := func(s float64) string { return report.FormatNumber(1000 * s) }
	for _, c := range cells {
		all := append(append([]figures{}, c.rivals...), c.systems...)
		t.Group = len(all)
		for _, f := range all {
			t.Rows = append(t.Rows, []string{c.workload, strconv.Itoa(c.replicas), fmt.Sprint(c.load), f.Name, strconv.Itoa(f.Stages),
				ms(f.Mean), ms(f.Longest), ms(f.Median), ms(f.P95), ms(f.MedianTTFT), ms(f.P95TTFT)})
		}
	}
	return t
}

// verdictsTable lists, for every candidate and workload, in how many cells the rule holds, and the
// geometric means and the worst of the ratios.
func verdictsTable(cells []cell) report.Table {
	t := report.Table{
		Title:  "The rule for defaults",
		Header: []string{"candidate", "workload", "rule kept", "longest decile p99 / least load", "worst", "others p50 / best rival", "others p95 / best rival", "mean / best rival"}, Left: 2,
		Notes: []string{fmt.Sprintf("Ratios are geometric means over loads and fleets, of normalised latency. The rule is kept in a cell where the first is at most %v and the next two are at most %v.", longestBound, equalBound)},
	}
	if len(cells) == 0 {
		return t
	}
	for k, s := range cells[0].systems {
		var workloads []string
		by := map[string][]verdict{}
		for _, c := range cells {
			if by[c.workload] == nil {
				workloads = append(workloads, c.workload)
			}
			v := judge(c.systems[k], c.rivals)
			by[c.workload] = append(by[c.workload], v)
			by[""] = append(by[""], v)
		}
		t.Group = len(workloads) + 1
		for _, w := range append(workloads, "") {
			name := w
			if w == "" {
				name = "all"
			}
			t.Rows = append(t.Rows, verdictRow(s.Name, name, by[w]))
		}
	}
	return t
}

func verdictRow(system, workload string, all []verdict) []string {
	kept, worst := 0, 0.0
	var longest, median, p95, mean float64
	for _, v := range all {
		if v.kept() {
			kept++
		}
		worst = max(worst, v.Longest)
		longest += math.Log(v.Longest)
		median += math.Log(v.Median)
		p95 += math.Log(v.P95)
		mean += math.Log(v.Mean)
	}
	n := float64(len(all))
	times := func(sum float64) string { return "× " + strconv.FormatFloat(math.Exp(sum/n), 'f', 2, 64) }
	return []string{system, workload, fmt.Sprintf("%d of %d", kept, len(all)), times(longest), "× " + strconv.FormatFloat(worst, 'f', 2, 64), times(median), times(p95), times(mean)}
}

// brokenTable lists the cells where the rule is not kept, and by which figure.
func brokenTable(cells []cell) report.Table {
	t := report.Table{
		Title:  "Where the rule is not kept",
		Header: []string{"candidate", "workload", "replicas", "load", "stages", "longest decile p99 / least load", "others p50 / best rival", "others p95 / best rival"}, Left: 2,
		Notes: []string{fmt.Sprintf("* is more than the bound: %v, %v and %v.", longestBound, equalBound, equalBound)},
	}
	if len(cells) == 0 {
		return t
	}
	mark := func(ratio, bound float64) string {
		s := "× " + strconv.FormatFloat(ratio, 'f', 3, 64)
		if ratio > bound {
			s += " *"
		}
		return s
	}
	for k := range cells[0].systems {
		for _, c := range cells {
			f := c.systems[k]
			if v := judge(f, c.rivals); !v.kept() {
				t.Rows = append(t.Rows, []string{f.Name, c.workload, strconv.Itoa(c.replicas), fmt.Sprint(c.load), strconv.Itoa(f.Stages),
					mark(v.Longest, longestBound), mark(v.Median, equalBound), mark(v.P95, equalBound)})
			}
		}
	}
	return t
}

// plotCells draws the cells of the first candidate: what it costs the longest decile, and what it gives the
// others.
func plotCells(cells []cell) (report.Picture, error) {
	var series []report.Series
	for _, c := range cells {
		if len(series) == 0 || series[len(series)-1].Name != c.workload {
			series = append(series, report.Series{Name: c.workload})
		}
		v, last := judge(c.systems[0], c.rivals), &series[len(series)-1]
		last.Points = append(last.Points, report.XY{X: v.Longest, Y: v.P95})
	}
	title := cells[0].systems[0].Name + ": each point is a workload at one load on one fleet"
	return report.Ratios(title, "longest decile, p99 over least load's", "other requests, p95 over the best rival's", series, report.XY{X: longestBound, Y: equalBound})
}
