// Package demo describes the result of a comparison of fleets: whether stages formed, the savings of stages and of
// placement, and the decisions of policy modules.
package demo

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/engine/replay"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/adoption"
	"github.com/cascadeinfer/cascade/policies/partition"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Expectation is the gain in cost that the planner would predict of stages, if it knew all requests of a comparison; 1
// if one stage cannot carry the load.
type Expectation float64

// ExpectStages returns what a planner is expected to predict.
func ExpectStages(w policies.Workload, f config.Fleet) (x Expectation, err error) {
	_, ratio := f.IterationBounds()
	part, err := adoption.LimitIterationRatio(partition.Exact{Slack: partition.DefaultSlack}, ratio).Partition(w)
	if errors.Is(err, policies.ErrInfeasible) {
		return x, nil
	}
	if err == nil && len(part.Counts) > 1 {
		x = Expectation(1 - part.Cost/part.OneStage)
	}
	return x, err
}

// oneStage says why no stages are formed; "" if they are expected.
func (x Expectation) oneStage() string {
	switch x {
	case 0:
		return "the planner predicts no gain for this traffic"
	case 1:
		return ""
	}
	return fmt.Sprintf("requests are placed by price, which saves in one stage most of the %.0f %% of the cost that stages "+
		"would save otherwise; a fleet is divided if one stage cannot carry its load", 100*float64(x))
}

// Announce says before the runs whether stages are expected.
func (x Expectation) Announce() string {
	if why := x.oneStage(); why != "" {
		return "no stages are expected: " + why
	}
	return "stages are expected: one stage cannot carry this load"
}

// Story says in three sentences what a comparison has shown. The results are those of round robin, placement alone and
// Cascade, in this order; plan and moves are those of Cascade.
func Story(results []replay.Result, plan control.Model, moves inprocess.MigrationStats, x Expectation) []string {
	if len(results) != 3 {
		return []string{"", "", ""}
	}
	one, placed, ours := results[0], results[1], results[2]
	normalised := func(r replay.Result) float64 { return r.Engine.Normalised.Mean }
	sentences := []string{describeStages(plan, moves, x)}
	var void []string
	for _, r := range results {
		if r.Void != "" || normalised(r) == 0 {
			void = append(void, r.Name)
		}
	}
	if len(void) > 0 {
		return append(sentences,
			fmt.Sprintf("Nothing can be compared: the machine was too busy for the figures of %s to count.", strings.Join(void, ", ")),
			"Run it again with more idle CPU, or with fewer --replicas at a lower --rate.")
	}
	rival, other := placed, one
	if best := report.BestOther(results, 2, normalised); best == 0 {
		rival, other = one, placed
	}
	first := func(r replay.Result) float64 { return r.Engine.TTFT.Mean }
	sentences = append(sentences, fmt.Sprintf("Its latency per output token is %s on average, × %s of %s, the best rival, "+
		"and × %s of %s; first tokens come after %s, × %s and × %s.",
		report.FormatTime(normalised(ours)), over(ours, rival, normalised), rival.Name, over(ours, other, normalised), other.Name,
		report.FormatTime(first(ours)), over(ours, rival, first), over(ours, other, first)))
	all, placement := 1-normalised(ours)/normalised(one), 1-normalised(placed)/normalised(one)
	rest := "migrations"
	if len(plan.Stages) > 1 {
		rest = "stages with migrations"
	}
	return append(sentences, describeShares(all, placement, rest)+describeWorst(results)+".")
}

// over returns the ratio of a figure of two results.
func over(a, b replay.Result, figure func(replay.Result) float64) string {
	if figure(b) == 0 {
		return "–"
	}
	return report.FormatNumber(figure(a) / figure(b))
}

// describeStages says which stages formed, or why none did.
func describeStages(plan control.Model, moves inprocess.MigrationStats, x Expectation) string {
	if len(plan.Stages) < 2 {
		why := x.oneStage()
		if why == "" {
			why = "the planner had not decided for them before the last request; more --requests give it time"
		}
		return "No stage formed: " + why + "."
	}
	stages, replicas := make([]string, len(plan.Stages)), 0
	for i, st := range plan.Stages {
		stages[i] = fmt.Sprintf("%s on %d", fleetview.FormatRange(st), len(st.Replicas))
		replicas += len(st.Replicas)
	}
	moved := uint64(0)
	for _, n := range moves.Moved {
		moved += n
	}
	return fmt.Sprintf("Cascade divided %d replicas into %d stages by length (%s) and migrated %d running requests.",
		replicas, len(stages), strings.Join(stages, ", "), moved)
}

// describeShares says what placement and what the rest of Cascade contribute to what is saved on round robin.
func describeShares(all, placement float64, rest string) string {
	percent := func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }
	switch more := all - placement; {
	case all <= 0:
		return fmt.Sprintf("Nothing is saved on round robin here: placement changes the latency by %+.0f %%, %s by %+.0f %%",
			-100*placement+0, rest, -100*more+0)
	case placement <= 0:
		return fmt.Sprintf("All of the %s that it saves on round robin come from %s", percent(all), rest)
	case more < 0:
		return fmt.Sprintf("Placement alone saves %s of round robin's latency, and %s give %s back",
			percent(placement), rest, percent(-more))
	default:
		return fmt.Sprintf("Of the %s that it saves on round robin, placement carries %s and %s %s",
			percent(all), percent(placement), rest, percent(more))
	}
}

// describeWorst names the prompts that are served worst in comparison with the best rival, if they are served worse.
func describeWorst(results []replay.Result) string {
	worst, text := 1.0, "; no class of prompt lengths is served worse than by its best rival"
	for i, g := range results[2].Engine.Classes {
		mean := func(r replay.Result) float64 { return r.Engine.Classes[i].Normalised.Mean }
		best := report.BestOther(results, 2, mean)
		if best < 0 || mean(results[2])/mean(results[best]) <= worst {
			continue
		}
		worst = mean(results[2]) / mean(results[best])
		text = fmt.Sprintf("; prompts of %s tokens pay for it, × %s of %s",
			policies.LengthRange(g.Low, g.High), report.FormatNumber(worst), results[best].Name)
	}
	return text
}
