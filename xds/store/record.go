package store

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Bounds of an object's lists; strings are bounded by MaxText.
const (
	// MaxPast is how many former plans of one model are kept.
	MaxPast = 8
	// MaxRefused is how many refused resources are kept.
	MaxRefused = 64
	// maxReplicas bounds the lists that name replicas.
	maxReplicas = 1 << 17
	// maxWeight bounds an EDS weight; those that are served are far below.
	maxWeight = 1 << 20
	// maxRatio bounds bytes per token, in thousandths.
	maxRatio = 64_000
	// maxHold bounds how long new plans are held off.
	maxHold = 30 * 24 * time.Hour
)

// Weight is the EDS weight of a replica that has another than the neutral one.
type Weight struct {
	Replica policies.ReplicaID
	Weight  uint32 // 1 to 2^20
}

// Ratio is the prompt bytes per token that routes use for a model.
type Ratio struct {
	Model string
	Milli int64 // bytes per 1,000 tokens, at least 1
}

// Past is a plan that was in force once: how it divided the lengths, and among
// how many replicas. Which ones is worked out anew from those that are there.
type Past struct {
	Model  string
	Epoch  policies.Epoch
	Cuts   []policies.Tokens // interior boundaries, ascending
	Counts []int             // replicas of each stage: one more than Cuts
}

// Pin keeps a model at a plan, until it is taken out.
type Pin struct {
	Past
	By string // who asked for it
	At time.Time
}

// Hold keeps new plans of a model away for a while, after one was taken back.
type Hold struct {
	Model string
	Until time.Time
	For   time.Duration // how long it was meant to last; the next one is longer
}

// Refusal is one version of one xDS resource that a proxy has refused: nobody
// is to be sent it again.
type Refusal struct {
	Type, Name string
	Version    string // the content's hash
	Node       string // who refused it first
	Text       string // why, shortened and without what it quotes
	At         time.Time
}

// validateRecords checks what is stored beside the plans.
func (o Object) validateRecords() error {
	checks := [...]struct {
		list string
		err  error
	}{
		{"drained", replicasOnce(o.Drained)}, {"unready", replicasOnce(o.Unready)}, {"stopping", replicasOnce(o.Stopping)},
		{"weights", o.validateWeights()}, {"ratios", o.validateRatios()}, {"pins", o.validatePins()},
		{"past", o.validatePast()}, {"holds", o.validateHolds()}, {"refused", o.validateRefused()},
		{"policies", policyslots.ValidateAll(o.Slots)},
	}
	for _, c := range checks {
		if c.err != nil {
			return fmt.Errorf("%s: %w", c.list, c.err)
		}
	}
	return nil
}

// named says why a name cannot be one, or is a second of its kind.
func named[T ~string](seen map[T]bool, what string, name T) error {
	if name == "" || len(name) > MaxText {
		return fmt.Errorf("%s %.60q must have 1 to %d bytes", what, name, MaxText)
	}
	if seen[name] {
		return fmt.Errorf("%s %.60q is there twice", what, name)
	}
	seen[name] = true
	return nil
}

func replicasOnce(list []policies.ReplicaID) error {
	if len(list) > maxReplicas {
		return fmt.Errorf("more than %d replicas", maxReplicas)
	}
	seen := make(map[policies.ReplicaID]bool, len(list))
	for _, r := range list {
		if err := named(seen, "replica id", r); err != nil {
			return err
		}
	}
	return nil
}

func (o Object) validateWeights() error {
	if len(o.Weights) > maxReplicas {
		return fmt.Errorf("more than %d replicas", maxReplicas)
	}
	seen := make(map[policies.ReplicaID]bool, len(o.Weights))
	for _, w := range o.Weights {
		if err := named(seen, "replica id", w.Replica); err != nil {
			return err
		}
		if w.Weight < 1 || w.Weight > maxWeight {
			return fmt.Errorf("replica %.60q: weight %d: want 1 to %d", w.Replica, w.Weight, maxWeight)
		}
	}
	return nil
}

func (o Object) validateRatios() error {
	seen := make(map[string]bool, len(o.Ratios))
	for _, r := range o.Ratios {
		if err := named(seen, "model", r.Model); err != nil {
			return err
		}
		if r.Milli < 1 || r.Milli > maxRatio {
			return fmt.Errorf("model %.60q: %d bytes per 1,000 tokens: want 1 to %d", r.Model, r.Milli, maxRatio)
		}
	}
	return nil
}

func (o Object) validatePins() error {
	seen := make(map[string]bool, len(o.Pins))
	for _, p := range o.Pins {
		if err := named(seen, "model", p.Model); err != nil {
			return err
		}
		if len(p.By) > MaxText {
			return fmt.Errorf("model %.60q: a name may have %d bytes", p.Model, MaxText)
		}
		if err := p.Past.validate(o.Epoch); err != nil {
			return err
		}
	}
	return nil
}

func validateCuts(cuts []policies.Tokens) error {
	if len(cuts) >= policies.MaxStages {
		return fmt.Errorf("%d cuts make more than %d stages", len(cuts), policies.MaxStages)
	}
	last := policies.Tokens(0)
	for _, c := range cuts {
		if c <= last || c == policies.Unbounded {
			return fmt.Errorf("cut %d after %d: cuts ascend from above 0", c, last)
		}
		last = c
	}
	return nil
}

func (o Object) validatePast() error {
	kept := make(map[string]int)
	newest := make(map[string]policies.Epoch)
	for _, p := range o.Past {
		switch {
		case kept[p.Model] == MaxPast:
			return fmt.Errorf("model %.60q: more than %d plans", p.Model, MaxPast)
		case kept[p.Model] > 0 && p.Epoch <= newest[p.Model]:
			return fmt.Errorf("model %.60q: epoch %d after %d: the oldest comes first", p.Model, p.Epoch, newest[p.Model])
		}
		if err := p.validate(o.Epoch); err != nil {
			return err
		}
		kept[p.Model]++
		newest[p.Model] = p.Epoch
	}
	return nil
}

// validate checks a former plan of an object of that epoch.
func (p Past) validate(newest policies.Epoch) error {
	switch {
	case p.Model == "" || len(p.Model) > MaxText:
		return fmt.Errorf("model %.60q must have 1 to %d bytes", p.Model, MaxText)
	case p.Epoch > newest:
		return fmt.Errorf("model %.60q: epoch %d is beyond the object's, %d", p.Model, p.Epoch, newest)
	case len(p.Counts) != len(p.Cuts)+1:
		return fmt.Errorf("model %.60q, epoch %d: %d counts for %d cuts", p.Model, p.Epoch, len(p.Counts), len(p.Cuts))
	}
	if err := validateCuts(p.Cuts); err != nil {
		return fmt.Errorf("model %.60q, epoch %d: %w", p.Model, p.Epoch, err)
	}
	for _, n := range p.Counts {
		if n < 1 || n > maxReplicas {
			return fmt.Errorf("model %.60q, epoch %d: a stage of %d replicas", p.Model, p.Epoch, n)
		}
	}
	return nil
}

func (p Past) clone() Past {
	p.Cuts, p.Counts = slices.Clone(p.Cuts), slices.Clone(p.Counts)
	return p
}

func (o Object) validateHolds() error {
	seen := make(map[string]bool, len(o.Holds))
	for _, h := range o.Holds {
		if err := named(seen, "model", h.Model); err != nil {
			return err
		}
		if h.For < 0 || h.For > maxHold {
			return fmt.Errorf("model %.60q: for %v: want 0 to %v", h.Model, h.For, maxHold)
		}
	}
	return nil
}

func (o Object) validateRefused() error {
	if len(o.Refused) > MaxRefused {
		return fmt.Errorf("more than %d", MaxRefused)
	}
	seen := make(map[[3]string]bool, len(o.Refused))
	for i, r := range o.Refused {
		for _, text := range [...]string{r.Type, r.Name, r.Version, r.Node, r.Text} {
			if len(text) > MaxText {
				return fmt.Errorf("entry %d: a text may have %d bytes", i, MaxText)
			}
		}
		key := [3]string{r.Type, r.Name, r.Version}
		if r.Type == "" || r.Version == "" || seen[key] {
			return fmt.Errorf("entry %d: want a type and a version, each once", i)
		}
		seen[key] = true
	}
	return nil
}

// validate checks the figures of a reason, which are numbers.
func (r Reason) validate() error {
	for _, text := range [...]string{r.Model, r.Text, r.Decision, r.By} {
		if len(text) > MaxText {
			return fmt.Errorf("a text may have %d bytes", MaxText)
		}
	}
	for _, x := range [...]float64{r.Gain, r.Predicted, r.Observed} {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return errors.New("a figure is not a number")
		}
	}
	if r.Times < 0 {
		return fmt.Errorf("times %d is negative", r.Times)
	}
	return nil
}
