package config

import (
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/policies/planner"
)

// IterationBound bounds the predicted iteration time of stages: a ratio to that of one stage, such as 1.5, or a time,
// such as 60ms.
type IterationBound string

// maxIterationRatio is the largest ratio, which bounds nothing.
const maxIterationRatio = 100

// IterationBounds returns the bounds of each stage's iteration time: a time at speed 1, 0 for none, and a ratio to that
// of one stage. Where the fleet file sets a time, the ratio is the preset's.
func (f *Fleet) IterationBounds() (limit time.Duration, ratio float64) {
	limit, ratio = f.Planner.Iteration.parts()
	if ratio == 0 {
		_, ratio = defaultIteration(f.Preset).parts()
	}
	return limit, ratio
}

// defaultIteration returns the bound of a preset.
func defaultIteration(preset string) IterationBound {
	ratio := planner.DefaultIterationRatio
	if preset == PresetPaper {
		ratio = maxIterationRatio
	}
	return IterationBound(strconv.FormatFloat(ratio, 'g', -1, 64))
}

// parts returns the time or the ratio that the bound states; both are 0 if it states neither.
func (b IterationBound) parts() (limit time.Duration, ratio float64) {
	if ratio, err := strconv.ParseFloat(string(b), 64); err == nil {
		return 0, ratio
	}
	limit, _ = time.ParseDuration(string(b))
	return limit, 0
}

func (b IterationBound) validate(c *checker) {
	limit, ratio := b.parts()
	if !(limit > 0 && limit <= time.Minute) && !(ratio >= 1 && ratio <= maxIterationRatio) {
		c.fail("planner.iteration", "%q: must be a ratio from 1 to %d, for instance 1.5, or a time of at most 1m, for instance 60ms", string(b), maxIterationRatio)
	}
}
