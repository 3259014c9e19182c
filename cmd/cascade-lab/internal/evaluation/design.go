package evaluation

import (
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
)

// attainment is the share of requests within multiples of the latency without load.
func (e *Evaluation) attainment(get lookup) ([]row, webpage.Section) {
	s := webpage.Section{ID: "slo", Title: "SLO attainment"}
	alone := e.workloads[e.shareGPT].alone(e.engines[h20Base])
	s.Paragraphs = []string{fmt.Sprintf("The SLO is N times the mean TTFT and TPOT of a request that is alone: %s and %s, by the cost model. A request attains it with both.", seconds(alone.TTFT), seconds(alone.TPOT))}
	t := report.Table{Title: h20Base, Header: []string{"load", "policy"}, Left: 2}
	for _, times := range replay.Multiples {
		t.Header = append(t.Header, fmt.Sprintf("%.0f ×", times))
	}
	attained := func(i int) metric {
		return metric{name: "attainment", of: func(o Outcome) float64 { return o.Attained[i] }, higher: true, plain: true}
	}
	for _, load := range e.in.Size.PaperLoads {
		for _, policy := range systems {
			row := []string{report.FormatNumber(load), policy}
			for i := range replay.Multiples {
				row = append(row, percent(mean(e.at(get, h20Base, measured, e.in.Size.PaperReplicas, []float64{load})(policy)[0], attained(i))))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	for i, times := range replay.Multiples {
		s.Charts = append(s.Charts, e.loadChart(get, fmt.Sprintf("Attainment of %.0f × SLO", times), attained(i), systems))
	}
	s.Tables = []report.Table{t}
	heavy := e.at(get, h20Base, measured, e.in.Size.PaperReplicas, e.heavyLoads())
	why := "Also \"cascade replay\" and \"cascade sim\" keep every request's TTFT and TPOT (--out). " + derivedEngine
	fill := func(i int, low, high float64, label, what string) row {
		return comparison{attained(i), []claim{{"vLLM and SGLang", roundRobin, span{low, high}}, {"Llumnix", llumnix, span{low, high}}}, heavy}.
			fill(row{label: label, figure: "Fig. 12", what: what, status: approximated, why: why}, sim.Cascade, sim.Paper)
	}
	ten := fill(1, 1, 1, "fig:slo-2", "attainment of 10 × SLO under heavy load")
	ten.paper, ten.seen = "plotted, no number", "–"
	return []row{
		fill(0, 3.8, 7.6, "fig:slo-1", "attainment of 5 × SLO under heavy load"), ten,
		fill(2, 2.0, 2.8, "fig:slo-3", "attainment of 20 × SLO under heavy load"),
	}, s
}

// prediction is the error of the QoE model.
func (e *Evaluation) prediction(get lookup) ([]row, webpage.Section) {
	s := webpage.Section{ID: "prediction", Title: "Prediction error"}
	t := report.Table{Title: "Relative errors of the normalised latency of requests that were not fitted", Header: []string{"load", "by", "mean", "p50", "p90", "requests"}, Left: 2, Group: 3}
	regressed, static, derived, ratio := noSpan, noSpan, noSpan, noSpan // ratio is that of the regressed to the static one
	for _, load := range e.in.Size.PaperLoads {
		o := get(e.seeds(e.paperRun(h20Base, measured, roundRobin, 1, load), 1)[0]).Prediction
		if o.Requests == 0 {
			t.Rows = append(t.Rows, []string{report.FormatNumber(load), "too few requests", "–", "–", "–", "0"})
			continue
		}
		regressed, derived, static = regressed.with(o.Regressed.Mean), derived.with(o.Derived.Mean), static.with(o.Static.Mean)
		ratio = ratio.with(o.Regressed.Mean / o.Static.Mean)
		c := webpage.Chart{Title: "Errors at load " + report.FormatNumber(load), X: "relative error, (predicted − measured) / measured", Y: "share of requests", Steps: true}
		for _, x := range []struct {
			by string
			Errors
		}{{"the regressed QoE model", o.Regressed}, {"the profile's QoE model", o.Derived}, {"always the mean", o.Static}} {
			t.Rows = append(t.Rows, []string{report.FormatNumber(load), x.by, percent(x.Mean), percent(x.P50), percent(x.P90), fmt.Sprint(o.Requests)})
			curve := webpage.Curve{Name: x.by}
			for i, share := range x.Shares {
				curve.Points = append(curve.Points, report.XY{X: -1 + errorStep*float64(i), Y: share})
			}
			c.Curves = append(c.Curves, curve)
		}
		s.Charts = append(s.Charts, c)
	}
	s.Tables = []report.Table{t}
	print := func(s span) string {
		if s.low > s.high {
			return "–"
		}
		if low, high := percent(s.low), percent(s.high); low != high {
			return low + " … " + high
		}
		return percent(s.low)
	}
	return []row{{
		label: "fig:prediction", figure: "Fig. 13", what: "mean error of predicted latency", status: approximated,
		paper: "8.9 %, static 64 %", ours: fmt.Sprintf("regressed %s, from the profile %s, static %s", print(regressed), print(derived), print(static)), seen: comparePrediction(ratio),
		why: "One replica at several loads; every second request is fitted, the others are predicted. Requests arrive as they come, where the paper keeps a batch full; the engine is simulated, so that its noise is only that of its batches. Measured engines are in BENCHMARKS.md.",
	}}, s
}

// comparePrediction says whether the paper's claim, an error far below the static predictor's, is seen in the ratios
// of the two.
func comparePrediction(ratio span) string {
	switch {
	case ratio.low > ratio.high:
		return "not measured"
	case ratio.high < 0.5:
		return "yes: less than half of the static predictor's at every load"
	case ratio.high < 1:
		return "partly: below the static predictor's at every load"
	case ratio.low < 1:
		return "partly: below the static predictor's at some loads"
	}
	return "no"
}

// design is layouts, refinement policies and the complexity of planning.
func (e *Evaluation) design(get lookup) ([]row, webpage.Section) {
	s := webpage.Section{ID: "design", Title: "Layouts, refinement and planning"}
	n := e.in.Size.PaperReplicas
	heavy := e.at(get, h20Base, measured, n, e.heavyLoads())
	layouts := []string{sim.Paper, sim.Chain, sim.NoPipeline, sim.Cascade, sim.OneStage}
	refiners := []string{sim.Paper, sim.RefineQuantity, sim.RefineMemory}
	s.Tables = []report.Table{
		e.loadTable(get, "Layouts", h20Base, measured, n, e.heavyLoads(), layouts),
		e.loadTable(get, "Refinement policies", h20Base, measured, n, e.heavyLoads(), refiners),
		e.planning(),
	}
	for _, m := range []metric{normalMean, throughput} {
		c := webpage.Chart{Title: "Layouts: " + m.name, X: "load", Y: m.name}
		for _, policy := range layouts {
			curve := webpage.Curve{Name: policy}
			for i, outcomes := range heavy(policy) {
				curve.Points = append(curve.Points, report.XY{X: e.heavyLoads()[i], Y: mean(outcomes, m)})
			}
			c.Curves = append(c.Curves, curve)
		}
		s.Charts = append(s.Charts, c)
	}
	one := func(m metric, rival string, ratio float64) comparison {
		return comparison{m, []claim{{rival, rival, span{ratio, ratio}}}, heavy}
	}
	rows := []row{
		one(normalMean, sim.Chain, .70).fill(row{label: "fig:topo-latency", figure: "Fig. 14a", what: "normalised latency against a chain", status: approximated, why: derivedEngine + " A plan has at most eight stages here, so that the chain's stages have two replicas on sixteen."}, sim.Paper, sim.Cascade),
		one(throughput, sim.Chain, 1.071).fill(row{label: "fig:topo-throughput", figure: "Fig. 14b", what: "throughput against a chain", status: approximated, why: derivedEngine}, sim.Paper, sim.Cascade),
		one(normalMean, sim.NoPipeline, .70).fill(row{label: "fig:topo (no pipeline)", figure: "Fig. 14", what: "normalised latency against one stage for all", status: approximated, paper: "no-pipeline is worst, worse than the chain", why: derivedEngine}, sim.Paper, sim.Cascade),
		one(normalMean, sim.RefineMemory, .79).fill(row{label: "fig:partition-latency", figure: "Fig. 15a", what: "normalised latency against refinement by memory", status: approximated, why: derivedEngine}, sim.Paper, sim.Cascade),
		one(throughput, sim.RefineMemory, 1.12).fill(row{label: "fig:partition-throughput", figure: "Fig. 15b", what: "throughput against refinement by memory", status: approximated, why: derivedEngine}, sim.Paper, sim.Cascade),
		one(normalMean, sim.RefineQuantity, .79).fill(row{label: "fig:partition (quantity)", figure: "Fig. 15", what: "normalised latency against refinement by quantity", status: approximated, paper: "quantity is worst", why: derivedEngine}, sim.Paper, sim.Cascade),
		{
			label: "partition time", figure: "text", what: "time of stage partitioning, 16 replicas and 128K tokens", status: reproduced,
			paper: "0.06 s, against an estimated 51 hours unoptimised", ours: "in timings.md beside this page; steps below", seen: "see timings.md",
			why: "Times differ from run to run, and this page is the same bytes for the same command: they are measured when it is made and stand in a file of their own.",
		},
	}
	return rows, s
}

// planning counts the steps of the partition algorithms.
func (e *Evaluation) planning() report.Table {
	const replicas, length, octaves = 16.0, 131_072.0, 18.0
	return report.Table{
		Title: "Steps of planning 16 replicas, 128K tokens", Header: []string{"algorithm", "order", "steps"}, Left: 2,
		Rows: [][]string{
			{"the paper's recursion over every length", "E³·L²", fmt.Sprintf("%.1e", replicas*replicas*replicas*length*length)},
			{"the same over buckets of an octave", "E³·log²L", fmt.Sprintf("%.1e", replicas*replicas*replicas*octaves*octaves)},
			{"the paper's two phases", "E·(log²L + log E)", fmt.Sprintf("%.1e", replicas*(octaves*octaves+math.Log2(replicas)))},
		},
		Notes: []string{"51 hours for the first are 4 · 10⁸ steps/s. Ours (policies/partition) is exact and needs no heuristic."},
	}
}

// balance is the imbalance of output tokens between the replicas of a stage.
func (e *Evaluation) balance(get lookup) ([]row, webpage.Section) {
	s := webpage.Section{ID: "balance", Title: "The load-balancing effect of bid and ask"}
	n := e.in.Size.PaperReplicas
	policies := []string{sim.GrowthRandom, sim.GrowthOnly, sim.Paper, sim.Cascade, sim.WithoutForwards}
	t := report.Table{
		Title: fmt.Sprintf("Coefficient of variation of the output tokens of a stage's replicas, four stages of %d", n/4), Left: 1,
		Header: []string{"policy", "stage 1", "stage 2", "stage 3", "stage 4", "mean", "normalised mean"},
		Notes:  []string{"Stages of equal work, fixed for the run; all replicas' tokens, the warm-up included; means over the seeds. Policy without-forwards is cascade whose prompts are computed where a proxy sent them."},
	}
	average := map[string]float64{}
	for _, policy := range policies {
		r := e.paperRun(h20Base, measured, policy, n, e.nearFull())
		r.Layout = layoutFour
		outcomes := e.outcomes(get, r, e.in.Size.PaperSeeds)
		var byStage [4]float64
		for _, o := range outcomes {
			for stage := range byStage {
				byStage[stage] += variation(o.ReplicaTokens, stage*n/4, (stage+1)*n/4) / float64(len(outcomes))
			}
		}
		row := []string{policy}
		for _, v := range byStage {
			average[policy] += v / float64(len(byStage))
			row = append(row, percent(v))
		}
		t.Rows = append(t.Rows, append(row, percent(average[policy]), normalMean.format(mean(outcomes, normalMean))))
	}
	s.Tables = []report.Table{t}
	ratio := func(policy, to string) span {
		if average[to] == 0 {
			return noSpan
		}
		v := average[policy] / average[to]
		return span{v, v}
	}
	c := comparison{metric: metric{name: "variation"}}
	describe := func(policy string) string {
		return fmt.Sprintf("%s: %s against growth-only, %s against growth-random", policy, ratio(policy, sim.GrowthOnly).changes(), ratio(policy, sim.GrowthRandom).changes())
	}
	judge := func(policy string) string {
		return fmt.Sprintf("%s against inter-stage only: %s; %s against round robin: %s", policy, c.compare(less(.40, .40), ratio(policy, sim.GrowthOnly)), policy, c.compare(less(.47, .47), ratio(policy, sim.GrowthRandom)))
	}
	return []row{{
		label: "fig:load-balancing", figure: "Fig. 16", what: "variation of output tokens between the replicas of a stage, " + fmt.Sprintf("four stages of %d", n/4), status: reproduced,
		paper: "full bid-ask −40 % against inter-stage only, −47 % against round robin",
		ours:  describe(sim.Paper) + "; " + describe(sim.Cascade),
		seen:  judge(sim.Paper) + "; " + judge(sim.Cascade),
		why: "The protocol is the production package; only the engines' times are simulated. Requests that a router hands on in turn go to random replicas here. " +
			"Cascade evens costs and not output tokens: its front ends forward prompts to the cheapest replica, and the tokens of a request follow its prompt. The policy without-forwards of the table is Cascade with the same market and without that. " +
			"It also offers a request only one bucket of lengths beyond its stage's end, to move fewer, so that the first of these stages generates more than the layout means it to.",
	}}, s
}

// variation is the coefficient of variation of counts[from:to]; 0 for none.
func variation(counts []uint64, from, to int) float64 {
	if to > len(counts) || from >= to {
		return 0
	}
	sum, squares, n := 0.0, 0.0, float64(to-from)
	for _, c := range counts[from:to] {
		sum, squares = sum+float64(c), squares+float64(c)*float64(c)
	}
	if sum == 0 {
		return 0
	}
	m := sum / n
	return math.Sqrt(max(0, squares/n-m*m)) / m
}
