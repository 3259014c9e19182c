package stageplan

import (
	"fmt"
	"math"

	"github.com/cascadeinfer/cascade/policies/place"
	"github.com/cascadeinfer/cascade/policies/planner"
)

// Prefill is the price of prefill replicas beside that of none.
type Prefill struct {
	Moved   float64         `json:"moved_per_second"` // requests whose prompts they would compute
	Pays    bool            `json:"pays"`
	Gain    float64         `json:"gain"` // share of the cost that the best number saves
	Best    int             `json:"best"` // prefill replicas
	Options []PrefillOption `json:"options"`
}

// PrefillOption is one number of prefill replicas. Its cost is null if the replicas cannot carry the load so.
type PrefillOption struct {
	Prefill     int      `json:"prefill_replicas"`
	Stages      int      `json:"stages"`
	Utilisation float64  `json:"utilisation"`
	Decode      float64  `json:"decode"`
	Wait        float64  `json:"wait"`
	Move        float64  `json:"move"`
	Cost        *float64 `json:"cost"`
}

// describeQuote returns the prices of prefill replicas.
func describeQuote(q planner.PrefillQuote) *Prefill {
	out := &Prefill{Moved: q.Moved, Pays: q.Pays(), Gain: q.Gain(), Best: q.Options[q.Best].Prefill}
	for _, o := range q.Options {
		row := PrefillOption{
			Prefill: o.Prefill, Stages: o.Stages, Utilisation: o.Utilisation, Decode: o.Decode, Wait: o.Wait, Move: o.Move,
		}
		if !math.IsInf(o.Cost, 1) {
			row.Cost = &o.Cost
		} else {
			row.Decode, row.Wait, row.Move = 0, 0, 0
		}
		out.Options = append(out.Options, row)
	}
	return out
}

// notes says whether prefill replicas pay for a fleet of so many replicas, and why.
func (r *Prefill) notes(replicas int) []string {
	if r.Moved == 0 {
		return []string{fmt.Sprintf("Prefill replicas do not pay: no bucket of prompts has %d uncached tokens on average.",
			place.MinUncached)}
	}
	notes := []string{"Without prefill replicas: " + r.Options[0].describe() + "."}
	split := r.bestSplit()
	if split == nil {
		return append(notes, "Prefill replicas do not pay: the other replicas could not carry this load.")
	}
	notes = append(notes, fmt.Sprintf("With %d of %d, %.0f %% busy, for %.2f requests/s: %s.",
		split.Prefill, replicas, 100*split.Utilisation, r.Moved, split.describe()))
	switch {
	case r.Pays:
		return append(notes, fmt.Sprintf("Prefill replicas: %d of %d would save %.0f %%.",
			split.Prefill, replicas, 100*r.Gain))
	case r.Best == 0:
		return append(notes, "Prefill replicas do not pay: none is cheaper.")
	}
	return append(notes, fmt.Sprintf("Prefill replicas do not pay: %d of %d would save %.1f %%, "+
		"and less than %.0f %% is within the model's error.",
		split.Prefill, replicas, 100*r.Gain, 100*planner.MinPrefillGain))
}

// bestSplit returns the cheapest option with prefill replicas, even if none at all is cheaper. It
// returns nil if no such option can carry the load.
func (r *Prefill) bestSplit() (best *PrefillOption) {
	for i := range r.Options {
		if o := &r.Options[i]; o.Prefill > 0 && o.Cost != nil && (best == nil || *o.Cost < *best.Cost) {
			best = o
		}
	}
	return best
}

// describe returns the option's cost and its parts.
func (o PrefillOption) describe() string {
	if o.Cost == nil {
		return "cannot carry this load"
	}
	return fmt.Sprintf("%.4g requests in the system: %.4g generate, %.3g wait for their first token, %.3g move",
		*o.Cost, o.Decode, o.Wait, o.Move)
}
