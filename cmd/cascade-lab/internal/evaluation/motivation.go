package evaluation

import (
	"fmt"

	"github.com/cascadeinfer/cascade/cmd/cascade-lab/internal/webpage"
	"github.com/cascadeinfer/cascade/engine/cost"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/engine/sim"
	"github.com/cascadeinfer/cascade/policies"
)

// motivation is what the paper measures before it proposes anything: lengths in batches, the share of attention,
// and what mixed lengths cost.
func (e *Evaluation) motivation(get lookup) ([]row, webpage.Section) {
	s := webpage.Section{ID: "motivation", Title: "Lengths in batches, and what they cost"}
	mixed, lengths := e.mixedLengths(get)
	interference, times := e.interference()
	share, shares := e.attentionShare()
	s.Tables = []report.Table{lengths, times, shares}
	return []row{mixed, share, interference}, s
}

// mixedLengths shows the lengths in batches under each policy.
func (e *Evaluation) mixedLengths(get lookup) (row, report.Table) {
	t := report.Table{
		Title: "Lengths in the batches of " + h20Base, Left: 2,
		Header: []string{"load", "policy", "variation of lengths", "longest over mean", "p50", "p99"},
		Notes:  []string{fmt.Sprintf("Batches are inspected every %v. The coefficient of variation and longest over mean are means over the batches of two and more; the quantiles are of all lengths in all batches, of the last seed.", inspectEvery)},
	}
	var cv [2]span
	for i := range cv {
		cv[i] = noSpan
	}
	for _, load := range e.in.Size.PaperLoads {
		for _, policy := range systems {
			outcomes := e.outcomes(get, e.paperRun(h20Base, measured, policy, e.in.Size.PaperReplicas, load), e.in.Size.PaperSeeds)
			variation, spread := 0.0, 0.0
			for _, o := range outcomes {
				variation, spread = variation+o.BatchCV/float64(len(outcomes)), spread+o.BatchSpread/float64(len(outcomes))
			}
			switch policy {
			case sim.Cascade:
				cv[0] = cv[0].with(variation)
			case roundRobin:
				cv[1] = cv[1].with(variation)
			}
			last := outcomes[len(outcomes)-1]
			t.Rows = append(t.Rows, []string{report.FormatNumber(load), policy, report.FormatNumber(variation), report.FormatNumber(spread), last.BatchP50.String(), last.BatchP99.String()})
		}
	}
	seen := "yes: batches of length-agnostic routers are mixed"
	if cv[1].low < 0.5 {
		seen = "partly: at some load the lengths vary little"
	}
	return row{
		label: "fig:mixed-len", figure: "Fig. 1", what: "lengths in batches, by policy and rate", status: reproduced,
		paper: "a few very long requests beside many short ones in every batch, under every scheduler", seen: seen,
		ours: fmt.Sprintf("coefficient of variation under round-robin %s … %s, under cascade %s … %s", report.FormatNumber(cv[1].low), report.FormatNumber(cv[1].high), report.FormatNumber(cv[0].low), report.FormatNumber(cv[0].high)),
		why:  "Lengths in batches follow from arrivals and routing; times are simulated. The paper has a plot and no number.",
	}, t
}

// interference prices the paper's batches: many short requests beside few long ones, against equally many of equal
// length and the same sum.
func (e *Evaluation) interference() (row, report.Table) {
	t := report.Table{
		Title: "One decoding iteration of 512 sequences, mixed over uniform, at the same sum of lengths", Left: 2,
		Header: []string{"lengths", "share of long ones", "A (sum)", "B (ten-percent)", "C (measured)", "D (stress)"},
		Notes:  []string{"By the price of an iteration of " + h100Small + ". Case C takes the nearest point of its table, which has no batch of 512 and no length beyond 16,384: none of these batches is inside."},
	}
	const batch = 512
	p := e.engines[h100Small]
	s := noSpan
	for _, lengths := range [][2]policies.Tokens{{1000, 50_000}, {200, 10_000}} {
		for _, long := range []int{1, 8, 64, 256} {
			row := []string{fmt.Sprintf("%d and %d", lengths[0], lengths[1]), fmt.Sprintf("%d of %d", long, batch)}
			sum := policies.Tokens(batch-long)*lengths[0] + policies.Tokens(long)*lengths[1]
			for i := range cost.AttentionCases() {
				a, err := cost.NewAttention(p, cost.AttentionCase(i), cost.DefaultStress, e.in.Skew)
				if err != nil {
					panic("internal error: " + err.Error()) // New has checked that there is a table
				}
				uniform := a.Seconds(cost.Iteration{Decodes: batch, Held: sum, Longest: sum / batch})
				ratio := a.Seconds(cost.Iteration{Decodes: batch, Held: sum, Longest: lengths[1]}) / uniform
				if cost.AttentionCase(i) == cost.MeasuredSkew {
					s = s.with(ratio)
				}
				row = append(row, report.FormatNumber(ratio))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return row{
		label: "fig:interference", figure: "Fig. 2", what: "what mixed lengths cost a decoding pass at an equal sum", status: impossible,
		paper: "× 1.1 … 2.1", ours: "case C, outside of what was measured: " + s.factors(), seen: "not measured",
		why: "It is a property of kernels on a GPU. The only public measurement of such batches (KV to 16,384, mostly 4:1) has a median of × 1.02 and at most × 1.29 on that GPU; the four cases bracket what is unknown.",
	}, t
}

// attentionShare is the share of attention in a decoding iteration.
func (e *Evaluation) attentionShare() (row, report.Table) {
	t := report.Table{Title: "Share of attention in a decoding iteration of " + h100Small, Header: []string{"batch", "length", "the paper", "here"}, Left: 0}
	p := e.engines[h100Small]
	var ours []string
	for _, c := range []struct {
		batch  int
		length policies.Tokens
		paper  float64
	}{{1, 1000, 0.14}, {250, 1000, 0.81}, {1, 200, 0.14}, {500, 200, 0.62}} {
		held := policies.Tokens(c.batch) * c.length
		attention := p.D4 * float64(held)
		share := percent(attention / p.Seconds(cost.Iteration{Decodes: c.batch, Held: held, Longest: c.length}))
		ours = append(ours, share)
		t.Rows = append(t.Rows, []string{fmt.Sprint(c.batch), c.length.String(), percent(c.paper), share})
	}
	t.Notes = []string{"Here attention is what grows with the lengths; its fixed part belongs to the iteration."}
	return row{
		label: "attention share", figure: "text", what: "attention in a decoding iteration: 1 and 250 sequences of 1,000, 1 and 500 of 200", status: approximated,
		paper: "14 %, 81 %, 14 %, 62 %", ours: joinWords(ours), seen: "the rise with the batch, yes",
		why: "By the derived profile of an H100 with the paper's model; its attention kernel is a later one.",
	}, t
}
