package evaluation

import (
	"fmt"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
)

// The policies of the paper's experiments, besides Cascade's.
const (
	roundRobin = "round-robin"
	llumnix    = "llumnix"
)

// systems are the systems of the paper's experiments.
var systems = []string{sim.Cascade, sim.Paper, roundRobin, llumnix, "least-load"}

// paperRun is the run of a policy in the paper's workload.
func (e *Evaluation) paperRun(engine, attention, policy string, replicas int, load float64) Run {
	return Run{
		Workload: e.shareGPT, Engine: engine, Attention: attention, Policy: policy, Replicas: replicas, Load: load,
		Seconds: e.in.Size.PaperSeconds, Warm: warmShare * e.in.Size.PaperSeconds,
	}
}

// measured is the attention case of the paper's experiments; the rate sweep is repeated in stress.
var measured, stress = cost.MeasuredSkew.String(), cost.Stress.String()

// nearFull is the middle one of the heavy loads, or the one below the middle.
func (e *Evaluation) nearFull() float64 {
	heavy := e.heavyLoads()
	return heavy[(len(heavy)-1)/2]
}

// heavyLoads returns the loads that count as heavy.
func (e *Evaluation) heavyLoads() (out []float64) {
	for _, load := range e.in.Size.PaperLoads {
		if load >= heavyLoad {
			out = append(out, load)
		}
	}
	return out
}

// at returns the outcomes of policies at some loads.
func (e *Evaluation) at(get lookup, engine, attention string, replicas int, loads []float64) func(policy string) [][]Outcome {
	return func(policy string) (out [][]Outcome) {
		for _, load := range loads {
			out = append(out, e.outcomes(get, e.paperRun(engine, attention, policy, replicas, load), e.in.Size.PaperSeeds))
		}
		return out
	}
}

// both joins the outcomes of two functions that at returned.
func both(a, b func(string) [][]Outcome) func(string) [][]Outcome {
	return func(policy string) [][]Outcome { return append(a(policy), b(policy)...) }
}

// less returns the ratio of a reduction by shares.
func less(least, most float64) span { return span{1 - most, 1 - least} }

const (
	noLlumnixEngine = "vLLM and SGLang differ here by nothing but their name: kernels and host overheads of engines are not simulated."
	derivedEngine   = "Simulated, with profiles derived for the paper's devices; see the assumptions."
)

// paperRows returns the row of every figure and claim, and the sections with the details.
func (e *Evaluation) paperRows(get lookup) (rows []row, sections []webpage.Section) {
	for _, part := range []func(lookup) ([]row, webpage.Section){e.motivation, e.rateSweep, e.testbeds, e.attainment, e.prediction, e.design, e.balance} {
		r, s := part(get)
		rows, sections = append(rows, r...), append(sections, s)
	}
	return rows, sections
}

// rateSweep is TTFT, TPOT and throughput by rate, of several models.
func (e *Evaluation) rateSweep(get lookup) ([]row, webpage.Section) {
	n := e.in.Size.PaperReplicas
	heavy, stressed := e.at(get, h20Base, measured, n, e.heavyLoads()), e.at(get, h20Base, stress, n, e.heavyLoads())
	light := e.in.Size.PaperLoads[:1]
	vLLM, sglang := "vLLM", "SGLang"
	latency := func(m metric, ours func(string) [][]Outcome, claims ...claim) comparison {
		return comparison{m, claims, ours}
	}
	rows := []row{
		latency(ttftMean, heavy, claim{vLLM, roundRobin, less(.67, .78)}, claim{sglang, roundRobin, less(.70, .84)}, claim{"Llumnix", llumnix, less(.36, .66)}).
			fill(row{label: "fig:ttft", figure: "Fig. 6", what: "mean TTFT under heavy load", status: approximated, why: derivedEngine + " " + noLlumnixEngine}, sim.Cascade, sim.Paper),
		latency(ttftP95, heavy, claim{vLLM, roundRobin, less(.56, .56)}, claim{sglang, roundRobin, less(.62, .62)}, claim{"Llumnix", llumnix, less(.19, .19)}).
			fill(row{label: "fig:ttft (tail)", figure: "Fig. 6", what: "95th percentile of TTFT under heavy load", status: approximated, why: derivedEngine}, sim.Cascade, sim.Paper),
		latency(tpotMean, heavy, claim{vLLM, roundRobin, less(.30, .64)}, claim{sglang, roundRobin, less(.25, .77)}, claim{"Llumnix", llumnix, less(.034, .56)}).
			fill(row{label: "fig:tpot", figure: "Fig. 7", what: "mean TPOT under heavy load", status: approximated, why: derivedEngine + " " + noLlumnixEngine}, sim.Cascade, sim.Paper),
		latency(tpotP95, heavy, claim{vLLM, roundRobin, less(.25, .25)}, claim{sglang, roundRobin, less(.61, .61)}, claim{"Llumnix", llumnix, less(.20, .20)}).
			fill(row{label: "fig:tpot (tail)", figure: "Fig. 7", what: "95th percentile of TPOT under heavy load", status: approximated, why: derivedEngine}, sim.Cascade, sim.Paper),
		latency(normalMean, stressed, claim{vLLM, roundRobin, less(.30, .64)}, claim{"Llumnix", llumnix, less(.034, .56)}).
			fill(row{label: "fig:tpot (stress)", figure: "Fig. 6, 7", what: "normalised latency under heavy load if attention were as sensitive to lengths as in the stress case", status: approximated, why: "No measurement says so: the case brackets the kernels that the paper describes. The paper's TPOT stands beside our normalised latency."}, sim.Cascade, sim.Paper),
		latency(ttftMean, e.at(get, h20Base, measured, n, light), claim{"Llumnix", llumnix, span{1, 1}}).
			fill(row{label: "light load", figure: "text", what: "mean TTFT under light load, which is to be no worse", status: approximated, paper: "comparable to Llumnix", why: derivedEngine}, sim.Cascade, sim.Paper),
		latency(throughput, heavy, claim{vLLM, roundRobin, span{1.99, 1.99}}, claim{sglang, roundRobin, span{2.18, 2.18}}, claim{"Llumnix", llumnix, span{1.71, 1.71}}).
			fill(row{label: "fig:throughput", figure: "Fig. 10", what: "throughput under heavy load", status: approximated, why: "Our engines prefill and decode in the same iterations; the paper's throughput falls beyond a rate because its engines prefill first. An open-loop fleet below saturation serves what arrives, whatever its policy."}, sim.Cascade, sim.Paper),
		e.models(get),
		{label: "fig:single-instance (Llumnix)", figure: "Fig. 8", what: "one instance against Llumnix's engine", status: impossible, paper: "22–81 % slower than Llumnix's engine", ours: "–", seen: "–", why: "It compares two releases of an engine, of which we run neither on a GPU."},
		e.single(get),
	}
	s := webpage.Section{ID: "rates", Title: "Latency and throughput by rate", Paragraphs: []string{fmt.Sprintf(
		"Stages at the end of the runs under heavy load, at most: cascade %d, paper %d. The paper has pipelines of 4 to 6.", mostStages(heavy(sim.Cascade)), mostStages(heavy(sim.Paper)),
	)}}
	for _, m := range []metric{ttftMean, ttftP95, tpotMean, tpotP95, normalMean, throughput} {
		s.Charts = append(s.Charts, e.loadChart(get, m.name, m, systems))
	}
	title := func(attention string) string {
		return fmt.Sprintf("%s, %d replicas, case %s", h20Base, n, caseName(attention))
	}
	s.Tables = []report.Table{
		e.loadTable(get, title(measured), h20Base, measured, n, e.in.Size.PaperLoads, systems),
		e.loadTable(get, title(stress), h20Base, stress, n, e.heavyLoads(), fewerSystems),
	}
	return rows, s
}

// loadChart draws a metric by load, one curve per policy.
func (e *Evaluation) loadChart(get lookup, title string, m metric, policies []string) webpage.Chart {
	c := webpage.Chart{Title: title, X: "load", Y: m.name, LogY: !m.plain}
	if !m.plain {
		c.Y += ", s"
	}
	for _, policy := range policies {
		curve := webpage.Curve{Name: policy}
		for i, outcomes := range e.at(get, h20Base, measured, e.in.Size.PaperReplicas, e.in.Size.PaperLoads)(policy) {
			curve.Points = append(curve.Points, report.XY{X: e.in.Size.PaperLoads[i], Y: mean(outcomes, m)})
		}
		c.Curves = append(c.Curves, curve)
	}
	return c
}

// loadTable lists the figures of policies by load.
func (e *Evaluation) loadTable(get lookup, title, engine, attention string, replicas int, loads []float64, policies []string) report.Table {
	t := report.Table{Title: title, Header: []string{"load", "requests/s", "policy"}, Left: 3}
	all := []metric{ttftMean, ttftP95, tpotMean, tpotP95, normalMean, normalP99, longestP99, throughput}
	for _, m := range all {
		t.Header = append(t.Header, m.name)
	}
	t.Header = append(t.Header, "stages", "moved")
	for _, load := range loads {
		for _, policy := range policies {
			outcomes := e.outcomes(get, e.paperRun(engine, attention, policy, replicas, load), e.in.Size.PaperSeeds)
			row := []string{report.FormatNumber(load), report.FormatNumber(outcomes[0].Rate), policy}
			for _, m := range all {
				row = append(row, m.format(mean(outcomes, m)))
			}
			stages, moved := 0, uint64(0)
			for _, o := range outcomes {
				stages, moved = stages+o.Stages, moved+o.Moved
			}
			t.Rows = append(t.Rows, append(row, report.FormatNumber(float64(stages)/float64(len(outcomes))), fmt.Sprint(moved/uint64(len(outcomes)))))
		}
	}
	return t
}

// models is the comparison on models of four sizes: the least and the greatest difference of any.
func (e *Evaluation) models(get lookup) row {
	load := []float64{e.nearFull()}
	n := e.in.Size.PaperReplicas
	ours := both(both(e.at(get, h20Small, measured, n, load), e.at(get, h20Base, measured, n, load)), both(e.at(get, h20Medium, measured, n, load), e.at(get, h20Large, measured, n, load)))
	c := comparison{normalMean, []claim{{"vLLM", roundRobin, less(.30, .64)}, {"Llumnix", llumnix, less(.034, .56)}}, ours}
	return c.fill(row{
		label: "models", figure: "Fig. 6, 7, 10", what: "normalised latency on models of 3B, 8B, 14B and 32B", status: approximated,
		why: "The paper has eight models, two of each size. Ours are four shapes, derived by bytes and operations; the span runs over them. The paper's TPOT stands beside our normalised latency.",
	}, sim.Cascade, sim.Paper)
}

// single compares Cascade with a plain engine on one replica.
func (e *Evaluation) single(get lookup) row {
	c := comparison{tpotMean, []claim{{"vLLM", roundRobin, span{1, 1}}}, e.at(get, h20Base, measured, 1, e.in.Size.PaperLoads)}
	r := c.fill(row{label: "fig:single-instance", figure: "Fig. 8", what: "TPOT of one instance", status: approximated, paper: "on par with vLLM", why: "One replica has nothing to balance: what is compared is the overhead of the policies, which is none in virtual time. The migrators' real overhead is in BENCHMARKS.md."}, sim.Cascade)
	return r
}

// testbeds are the L40 testbed and tensor parallelism.
func (e *Evaluation) testbeds(get lookup) ([]row, webpage.Section) {
	n, loads := e.in.Size.PaperReplicas, []float64{e.nearFull()}
	two, four := max(1, n/2), max(1, n/4)
	l40, tp2, tp4 := e.at(get, l40Base, measured, n, loads), e.at(get, h20TwoGPU, measured, two, loads), e.at(get, h20FourGPU, measured, four, loads)
	all := func(least, most float64, higher bool) []claim {
		s := less(least, most)
		if higher {
			s = span{least, most}
		}
		return []claim{{"vLLM", roundRobin, s}, {"Llumnix", llumnix, s}}
	}
	noMachine := derivedEngine + " There is no measured profile of an L40: a linear fit of the public table misses it by 45 %."
	rows := []row{
		comparison{normalMean, all(.45, .67, false), l40}.fill(row{label: "fig:l40-latency", figure: "Fig. 9a", what: "normalised latency on L40", status: approximated, why: noMachine}, sim.Cascade, sim.Paper),
		comparison{throughput, []claim{{"vLLM", roundRobin, span{1.37, 1.37}}, {"SGLang", roundRobin, span{1.21, 1.21}}, {"Llumnix", llumnix, span{1.34, 1.34}}}, l40}.
			fill(row{label: "fig:l40-throughput", figure: "Fig. 11a", what: "throughput on L40", status: approximated, why: noMachine}, sim.Cascade, sim.Paper),
		comparison{normalMean, all(.27, .65, false), tp2}.fill(row{label: "fig:tp-latency (2)", figure: "Fig. 9b", what: "normalised latency, Llama-3.1-70B on 2 GPUs each", status: approximated, why: derivedEngine}, sim.Cascade, sim.Paper),
		comparison{normalMean, all(.49, .64, false), tp4}.fill(row{label: "fig:tp-latency (4)", figure: "Fig. 9b", what: "normalised latency, Llama-3.1-70B on 4 GPUs each", status: approximated, why: derivedEngine}, sim.Cascade, sim.Paper),
		comparison{throughput, all(1.31, 2.53, true), tp2}.fill(row{label: "fig:tp-throughput (2)", figure: "Fig. 11b", what: "throughput, 2 GPUs each", status: approximated, why: derivedEngine}, sim.Cascade, sim.Paper),
		comparison{throughput, all(2.89, 4.16, true), tp4}.fill(row{label: "fig:tp-throughput (4)", figure: "Fig. 11b", what: "throughput, 4 GPUs each", status: approximated, why: derivedEngine + " Few replicas remain to make stages of."}, sim.Cascade, sim.Paper),
	}
	s := webpage.Section{ID: "testbeds", Title: "Other testbeds and models"}
	for _, x := range []struct {
		engine   string
		replicas int
	}{{l40Base, n}, {h20TwoGPU, two}, {h20FourGPU, four}, {h20Small, n}, {h20Medium, n}, {h20Large, n}} {
		s.Tables = append(s.Tables, e.loadTable(get, fmt.Sprintf("%s, %d replicas", x.engine, x.replicas), x.engine, measured, x.replicas, loads, fewerSystems))
	}
	return rows, s
}

// fewerSystems are those that the rows of testbeds, models and the stress case name.
var fewerSystems = []string{sim.Cascade, sim.Paper, roundRobin, llumnix}
