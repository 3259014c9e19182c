package fleetview

import (
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/cli"
	"github.com/cascadeinfer/cascade/xds/control"
)

// describeScaling says how many replicas a model should have, and why.
func describeScaling(s control.Scaling) string {
	text := fmt.Sprintf("Autoscaling: %s wanted, %d present; ", cli.Plural(s.Desired, "replica"), s.Present)
	switch s.Reason {
	case "unknown":
		return text + "the demand is not known yet, so the number stays."
	case "infeasible":
		return text + "no number of replicas keeps the limits (planner.iteration), so the number stays."
	}
	text += fmt.Sprintf("the demand needs %d, because of %s: %.1f busy at %.0f %% at most",
		s.Needed, describeLimit(s.Limit), s.Work, 100*s.Utilisation)
	if s.Growth > 1.005 {
		text += fmt.Sprintf(", %.0f %% more than is served", 100*(s.Growth-1))
	}
	if s.FallsSeconds > 0 {
		falls := time.Duration(s.FallsSeconds * float64(time.Second)).Round(time.Second)
		text += fmt.Sprintf("; it falls in %v if this lasts", falls)
	}
	var stages []string
	for _, st := range s.Stages {
		stages = append(stages, fmt.Sprintf("%s %d", st.Name, st.Replicas))
	}
	if len(stages) > 1 {
		text += "; as the stages are: " + strings.Join(stages, ", ")
	}
	return text + "."
}

// describeLimit names a limit as part of a sentence.
func describeLimit(limit string) string {
	switch limit {
	case "work", "utilisation":
		return "their time"
	case "bursts":
		return "room for bursts"
	case "links":
		return "what their links carry"
	}
	return "the limit of " + limit
}
