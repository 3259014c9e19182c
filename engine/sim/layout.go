package sim

import (
	"fmt"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// Layout is stages that are in force for a whole run: the first Counts[0] replicas serve lengths below
// Cuts[0], and so on. There is one cut fewer than stages.
type Layout struct {
	Cuts   []policies.Tokens
	Counts []int
}

// validateLayout checks Config.Layout. The error names the field.
func (c Config) validateLayout() error {
	l := c.Layout
	if l == nil {
		return nil
	}
	if !isCascade(c.Policy) {
		return fmt.Errorf("simulate: policy %q has no stages: Layout must be nil", c.Policy)
	}
	if len(l.Counts) != len(l.Cuts)+1 {
		return fmt.Errorf("simulate: Layout: %d cuts for %d stages; give one fewer than stages", len(l.Cuts), len(l.Counts))
	}
	total, low := 0, policies.Tokens(0)
	for i, n := range l.Counts {
		if n < 1 {
			return fmt.Errorf("simulate: Layout.Counts[%d]: %d replicas; give at least 1", i, n)
		}
		total += n
		if i < len(l.Cuts) {
			if l.Cuts[i] <= low {
				return fmt.Errorf("simulate: Layout.Cuts[%d]: %d is not above %d, where its stage begins", i, l.Cuts[i], low)
			}
			low = l.Cuts[i]
		}
	}
	if total != c.Replicas {
		return fmt.Errorf("simulate: Layout: its stages have %d replicas, the fleet %d", total, c.Replicas)
	}
	return nil
}

// adoptLayout puts the stages of a layout in force.
func (c *cascade) adoptLayout(l *Layout) {
	change := &planner.Change{Decision: "fixed", Reason: "the layout of this run"}
	low, first := policies.Tokens(0), 0
	for i, n := range l.Counts {
		stage := policies.Stage{Low: low, High: policies.Unbounded}
		if i < len(l.Cuts) {
			stage.High = l.Cuts[i]
		}
		for _, r := range c.replicas[first : first+n] {
			stage.Replicas = append(stage.Replicas, r.ID)
		}
		change.Stages = append(change.Stages, stage)
		low, first = stage.High, first+n
	}
	c.adopt(change)
}
