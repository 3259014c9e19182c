package evaluation

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/interval"
	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
)

// rivals are what users would pick instead of Cascade.
var rivals = []string{"least-load", "power-of-two", "prefix-tree", "lmetric", "llm-d", "llumnix"}

// limits are the metrics of the comparison with the policy ideal.
var limits = []metric{normalMean, ttftP95}

// compared are the metrics that verdicts are given on.
var compared = []metric{ttftMean, ttftP95, tpotMean, normalMean, normalP99, longestP99, throughput}

// letters are the names of the attention cases on the page, in the order of cost.AttentionCases.
var letters = [...]string{"A", "B", "C", "D"}

// caseName returns a case with its letter.
func caseName(attention string) string {
	return letters[slices.Index(cost.AttentionCases(), attention)] + " (" + attention + ")"
}

// point is one place of the comparison.
type point struct {
	workload, engine, attention string
	load                        float64
}

// String describes a point in a sentence.
func (p point) String() string {
	return fmt.Sprintf("%s at load %s, case %s", p.workload, report.FormatNumber(p.load), caseName(p.attention))
}

// verdict is one metric of Cascade against the rival that is best by it at a point.
type verdict struct {
	point
	metric metric
	rival  string
	ratio  interval.Interval // of Cascade over the rival
}

// margin is the relative difference below which a verdict would say nothing to a reader, however sure it is.
const margin = 0.01

// judge returns Above or Below 1 as worse or better for the reader: Below is better.
func (v verdict) judge() interval.Verdict {
	better, worse := interval.Below, interval.Above
	if v.metric.higher {
		better, worse = worse, better
	}
	switch {
	case v.ratio.Against(1-margin) == interval.Below:
		return better
	case v.ratio.Against(1+margin) == interval.Above:
		return worse
	}
	return interval.Undecided
}

// points lists the places of the comparison.
func (e *Evaluation) points() (out []point) {
	for _, engine := range e.in.Engines {
		for _, w := range e.in.Workloads {
			for _, attention := range cost.AttentionCases() {
				for _, load := range e.in.Size.RouterLoads {
					out = append(out, point{w.Name, engine.Name, attention, load})
				}
			}
		}
	}
	return out
}

// routerRun is the run of a policy at a point.
func (e *Evaluation) routerRun(p point, policy string) Run {
	size := e.in.Size
	rate := p.load * float64(size.RouterReplicas) * e.workloads[p.workload].capacity(e.engines[p.engine])
	seconds := min(6*size.RouterSeconds, max(size.RouterSeconds, size.RouterRequests/rate))
	return Run{
		Workload: p.workload, Engine: p.engine, Attention: p.attention, Policy: policy, Replicas: size.RouterReplicas,
		Load: p.load, Seconds: float64(int(seconds)), Warm: float64(int(warmShare * seconds)),
	}
}

// compareRouters returns a section per workload and engine, and all verdicts.
func (e *Evaluation) compareRouters(get lookup) (sections []webpage.Section, verdicts []verdict) {
	n := e.in.Size.RouterSeeds
	byPoint := map[point]map[string][]Outcome{}
	for _, p := range e.points() {
		all := map[string][]Outcome{}
		for _, policy := range append([]string{sim.Cascade, sim.Ideal}, rivals...) {
			all[policy] = e.outcomes(get, e.routerRun(p, policy), n)
		}
		byPoint[p] = all
		for _, m := range compared {
			verdicts = append(verdicts, judgePoint(p, m, all))
		}
	}
	for _, engine := range e.in.Engines {
		for _, w := range e.in.Workloads {
			sections = append(sections, e.routersSection(w.Name, engine.Name, byPoint, verdicts))
		}
	}
	return sections, verdicts
}

// judgePoint compares Cascade with the rival whose mean is best.
func judgePoint(p point, m metric, all map[string][]Outcome) verdict {
	best := ""
	for _, rival := range rivals {
		switch {
		case best == "":
			best = rival
		case m.higher == (mean(all[rival], m) > mean(all[best], m)) && mean(all[rival], m) != mean(all[best], m):
			best = rival
		}
	}
	return verdict{p, m, best, ratioOf(all[sim.Cascade], all[best], m)}
}

// routersSection shows one workload on one engine.
func (e *Evaluation) routersSection(workload, engine string, byPoint map[point]map[string][]Outcome, verdicts []verdict) webpage.Section {
	s := webpage.Section{
		ID:         fmt.Sprintf("routers-%d-%d", slices.IndexFunc(e.in.Engines, func(p cost.Profile) bool { return p.Name == engine }), slices.IndexFunc(e.in.Workloads, func(w Workload) bool { return w.Name == workload })),
		Title:      fmt.Sprintf("Against routers: %s on %s", workload, engine),
		Paragraphs: []string{fmt.Sprintf("%d replicas; load 1 is %s requests/s.", e.in.Size.RouterReplicas, report.FormatNumber(float64(e.in.Size.RouterReplicas)*e.workloads[workload].capacity(e.engines[engine])))},
	}
	policies := append([]string{sim.Cascade, sim.Ideal}, rivals...)
	for _, m := range []metric{normalMean, longestP99} {
		for _, attention := range []string{cost.SumOnly.String(), cost.MeasuredSkew.String()} {
			c := webpage.Chart{Title: fmt.Sprintf("%s, case %s", m.name, caseName(attention)), X: "load", Y: m.name + ", s/token", LogY: true}
			for _, policy := range policies {
				curve := webpage.Curve{Name: policy}
				for _, load := range e.in.Size.RouterLoads {
					curve.Points = append(curve.Points, report.XY{X: load, Y: mean(byPoint[point{workload, engine, attention, load}][policy], m)})
				}
				c.Curves = append(c.Curves, curve)
			}
			s.Charts = append(s.Charts, c)
		}
	}
	figures := report.Table{Title: "Means over the seeds", Header: []string{"case", "load", "policy"}, Left: 3}
	for _, m := range compared {
		figures.Header = append(figures.Header, m.name)
	}
	figures.Header = append(figures.Header, "failed", "outside of the table", "stages", "moved", "prefix hits", "of the ideal", "load CV")
	ratios := report.Table{Title: "Cascade over the rival that is best by each figure", Header: []string{"case", "load"}, Left: 2}
	for _, m := range compared {
		ratios.Header = append(ratios.Header, m.name)
	}
	for _, m := range limits {
		ratios.Header = append(ratios.Header, m.name+" over ideal")
	}
	for _, attention := range cost.AttentionCases() {
		for _, load := range e.in.Size.RouterLoads {
			p := point{workload, engine, attention, load}
			for _, policy := range policies {
				figures.Rows = append(figures.Rows, figureRow(p, policy, byPoint[p][policy]))
			}
			row := []string{caseName(attention), report.FormatNumber(load)}
			for _, v := range verdicts {
				if v.point == p {
					row = append(row, v.cell())
				}
			}
			for _, m := range limits {
				row = append(row, formatRatio(ratioOf(byPoint[p][sim.Cascade], byPoint[p][sim.Ideal], m)))
			}
			ratios.Rows = append(ratios.Rows, row)
		}
	}
	ratios.Notes = []string{"The geometric mean over the seeds and its 95 % interval; below 1 is faster (tokens/s: above 1 is more). Better and worse are said where the whole interval is more than 1 % away from 1. The longest tenth is that of the requests with the longest prompts, by normalised latency. Ideal is one decider that places by the same price and knows the present state of each replica; it moves no request afterwards."}
	figures.Notes = []string{"Outside of the table are decoding iterations of case C whose batch no measurement covers. Prefix hits are the share of prompt tokens that engines had cached, of the ideal is that over what one cache which loses nothing would have, and load CV the coefficient of variation of the engines' work of the last 30 s inside a stage, all of the whole run; – where prompts share no prefixes."}
	s.Tables = []report.Table{ratios, figures}
	return s
}

// figureRow lists the figures of a policy at a point.
func figureRow(p point, policy string, outcomes []Outcome) []string {
	row := []string{caseName(p.attention), report.FormatNumber(p.load), policy}
	for _, m := range compared {
		row = append(row, m.format(mean(outcomes, m)))
	}
	failed, requests, outside, priced, stages, moved := 0, 0, 0.0, 0.0, 0.0, 0.0
	for _, o := range outcomes {
		failed, requests = failed+o.Failed, requests+o.Requests
		outside, priced = outside+float64(o.Batches.Outside), priced+float64(o.Batches.Priced)
		stages, moved = stages+float64(o.Stages), moved+float64(o.Moved)
	}
	n := float64(max(1, len(outcomes)))
	share := "–"
	if p.attention == cost.MeasuredSkew.String() && priced > 0 {
		share = percent(outside / priced)
	}
	count := "–"
	if stages > 0 {
		count = report.FormatNumber(stages / n)
	}
	row = append(row, fmt.Sprintf("%d of %d", failed, requests), share, count, strconv.FormatFloat(moved/n, 'f', 0, 64))
	return append(row, reuseCells(outcomes)...)
}

// reuseCells lists the means of hit rate, its share of the ideal, and load CV.
func reuseCells(outcomes []Outcome) []string {
	hits, ofIdeal, spread, n, known := 0.0, 0.0, 0.0, 0.0, 0.0
	for _, o := range outcomes {
		if o.Reuse == nil {
			continue
		}
		hits, ofIdeal, n = hits+o.Reuse.HitRate, ofIdeal+o.Reuse.OfIdeal, n+1
		if o.Reuse.LoadCV >= 0 {
			spread, known = spread+o.Reuse.LoadCV, known+1
		}
	}
	cells := []string{"–", "–", "–"}
	if n > 0 {
		cells[0], cells[1] = percent(hits/n), percent(ofIdeal/n)
	}
	if known > 0 {
		cells[2] = report.FormatNumber(spread / known)
	}
	return cells
}

// formatRatio prints a ratio with its interval.
func formatRatio(r interval.Interval) string {
	switch r.Runs {
	case 0:
		return "–"
	case 1:
		return report.FormatNumber(r.Mean)
	}
	return fmt.Sprintf("%s (%s–%s)", report.FormatNumber(r.Mean), report.FormatNumber(r.Low), report.FormatNumber(r.High))
}

// cell prints the ratio of a verdict, with the rival.
func (v verdict) cell() string {
	text := formatRatio(v.ratio) + " " + v.rival
	switch v.judge() {
	case interval.Below:
		text += ", better"
	case interval.Above:
		text += ", worse"
	}
	return text
}
