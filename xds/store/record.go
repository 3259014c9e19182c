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
	// MaxFormerPlans is how many former plans of one model are kept.
	MaxFormerPlans = 8
	// maxReplicas bounds the lists that name replicas.
	maxReplicas = 1 << 17
	// maxWeight bounds an EDS weight; served weights are far below.
	maxWeight = 1 << 20
	// maxRatio bounds bytes per token, in thousandths.
	maxRatio = 64_000
	// maxRequests bounds the requests counted.
	maxRequests = 1 << 62
	// maxHold bounds how long new plans are held off.
	maxHold = 30 * 24 * time.Hour
)

// Weight is the EDS weight of a replica, stored if it is not the neutral one.
type Weight struct {
	Replica policies.ReplicaID `json:"replica"`
	Weight  uint32             `json:"weight"` // 1 to 2^20
}

// Ratio is the number of prompt bytes per token that routes use for a model.
type Ratio struct {
	Model string `json:"model"`
	Milli int64  `json:"milli"` // bytes per 1,000 tokens, at least 1
}

// RequestCount is how many requests of a model the front ends have counted.
type RequestCount struct {
	Model    string `json:"model"`
	Requests uint64 `json:"requests"` // at most 2^62
}

// FormerPlan is a plan that was once in force: how it divided the lengths, and among
// how many replicas. A rollback chooses the replicas anew.
type FormerPlan struct {
	Model  string            `json:"model"`
	Epoch  policies.Epoch    `json:"epoch"`
	Cuts   []policies.Tokens `json:"cuts,omitempty"` // interior boundaries, ascending
	Counts []int             `json:"counts"`         // replicas of each stage: one more than Cuts
}

// Pin keeps a model at a plan until the pin is removed.
type Pin struct {
	FormerPlan
	By string    `json:"by,omitempty"` // the operator
	At time.Time `json:"at"`
}

// Hold holds new plans of a model off for a while, after one was rolled back.
type Hold struct {
	Model string        `json:"model"`
	Until time.Time     `json:"until"`
	For   time.Duration `json:"for_nanoseconds"` // the whole length of the hold; the next one is longer
}

// validateRecords checks everything but the plans, the reasons and the lease.
func (o Object) validateRecords() error {
	checks := [...]struct {
		list string
		err  error
	}{
		{"drained", checkReplicaIDs(o.Drained)}, {"unready", checkReplicaIDs(o.Unready)}, {"stopping", checkReplicaIDs(o.Stopping)},
		{"weights", o.validateWeights()}, {"ratios", o.validateRatios()}, {"requests_seen", o.validateCounts()}, {"pins", o.validatePins()},
		{"former_plans", o.validateFormerPlans()}, {"holds", o.validateHolds()},
		{"slots", policyslots.ValidateAll(o.Slots)},
	}
	for _, c := range checks {
		if c.err != nil {
			return fmt.Errorf("%s: %w", c.list, c.err)
		}
	}
	return nil
}

// checkUniqueName returns an error for a name that is empty, too long or seen before.
func checkUniqueName[T ~string](seen map[T]bool, what string, name T) error {
	if name == "" || len(name) > MaxText {
		return fmt.Errorf("%s %.60q must have 1 to %d bytes", what, name, MaxText)
	}
	if seen[name] {
		return fmt.Errorf("%s %.60q is listed twice", what, name)
	}
	seen[name] = true
	return nil
}

// checkEach checks a list whose entries have unique names; check may be nil.
func checkEach[E any, N ~string](list []E, what string, name func(E) N, check func(E) error) error {
	if len(list) > maxReplicas {
		return fmt.Errorf("more than %d entries", maxReplicas)
	}
	seen := make(map[N]bool, len(list))
	for _, e := range list {
		err := checkUniqueName(seen, what, name(e))
		if err == nil && check != nil {
			err = check(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkReplicaIDs(list []policies.ReplicaID) error {
	return checkEach(list, "replica id", func(id policies.ReplicaID) policies.ReplicaID { return id }, nil)
}

func (o Object) validateWeights() error {
	return checkEach(o.Weights, "replica id", func(w Weight) policies.ReplicaID { return w.Replica }, func(w Weight) error {
		if w.Weight < 1 || w.Weight > maxWeight {
			return fmt.Errorf("replica %.60q: weight %d: must be 1 to %d", w.Replica, w.Weight, maxWeight)
		}
		return nil
	})
}

func (o Object) validateRatios() error {
	return checkEach(o.Ratios, "model", func(r Ratio) string { return r.Model }, func(r Ratio) error {
		if r.Milli < 1 || r.Milli > maxRatio {
			return fmt.Errorf("model %.60q: %d bytes per 1,000 tokens: must be 1 to %d", r.Model, r.Milli, maxRatio)
		}
		return nil
	})
}

func (o Object) validateCounts() error {
	return checkEach(o.Counts, "model", func(c RequestCount) string { return c.Model }, func(c RequestCount) error {
		if c.Requests > maxRequests {
			return fmt.Errorf("model %.60q: %d requests: must be at most %d", c.Model, c.Requests, uint64(maxRequests))
		}
		return nil
	})
}

func (o Object) validatePins() error {
	return checkEach(o.Pins, "model", func(p Pin) string { return p.Model }, func(p Pin) error {
		if len(p.By) > MaxText {
			return fmt.Errorf("model %.60q: the operator must have at most %d bytes", p.Model, MaxText)
		}
		return p.FormerPlan.validate(o.Epoch)
	})
}

func (o Object) validateHolds() error {
	return checkEach(o.Holds, "model", func(h Hold) string { return h.Model }, func(h Hold) error {
		if h.For < 0 || h.For > maxHold {
			return fmt.Errorf("model %.60q: hold of %v: must be 0 to %v", h.Model, h.For, maxHold)
		}
		return nil
	})
}

func validateCuts(cuts []policies.Tokens) error {
	if len(cuts) >= policies.MaxStages {
		return fmt.Errorf("%d cuts: a plan has at most %d stages", len(cuts), policies.MaxStages)
	}
	last := policies.Tokens(0)
	for _, c := range cuts {
		if c <= last || c == policies.Unbounded {
			return fmt.Errorf("cut %d after %d: cuts must ascend from above 0", c, last)
		}
		last = c
	}
	return nil
}

func (o Object) validateFormerPlans() error {
	kept := make(map[string]int)
	newest := make(map[string]policies.Epoch)
	for _, p := range o.FormerPlans {
		switch {
		case kept[p.Model] == MaxFormerPlans:
			return fmt.Errorf("model %.60q: more than %d plans", p.Model, MaxFormerPlans)
		case kept[p.Model] > 0 && p.Epoch <= newest[p.Model]:
			return fmt.Errorf("model %.60q: epoch %d after %d: the oldest must come first", p.Model, p.Epoch, newest[p.Model])
		}
		if err := p.validate(o.Epoch); err != nil {
			return err
		}
		kept[p.Model]++
		newest[p.Model] = p.Epoch
	}
	return nil
}

// validate checks a former plan of an object whose epoch is newest.
func (p FormerPlan) validate(newest policies.Epoch) error {
	switch {
	case p.Model == "" || len(p.Model) > MaxText:
		return fmt.Errorf("model %.60q must have 1 to %d bytes", p.Model, MaxText)
	case p.Epoch > newest:
		return fmt.Errorf("model %.60q: epoch %d is greater than the object's epoch, %d", p.Model, p.Epoch, newest)
	case len(p.Counts) != len(p.Cuts)+1:
		return fmt.Errorf("model %.60q, epoch %d: %d counts for %d cuts", p.Model, p.Epoch, len(p.Counts), len(p.Cuts))
	}
	if err := validateCuts(p.Cuts); err != nil {
		return fmt.Errorf("model %.60q, epoch %d: %w", p.Model, p.Epoch, err)
	}
	for _, n := range p.Counts {
		if n < 1 || n > maxReplicas {
			return fmt.Errorf("model %.60q, epoch %d: a stage with %d replicas", p.Model, p.Epoch, n)
		}
	}
	return nil
}

func (p FormerPlan) clone() FormerPlan {
	p.Cuts, p.Counts = slices.Clone(p.Cuts), slices.Clone(p.Counts)
	return p
}

// validate checks the bounds of a reason.
func (r Reason) validate() error {
	for _, text := range [...]string{r.Model, r.Text, r.Decision, r.By} {
		if len(text) > MaxText {
			return fmt.Errorf("a text must have at most %d bytes", MaxText)
		}
	}
	for _, x := range [...]float64{r.Gain, r.Predicted, r.Observed} {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return errors.New("a figure is not a finite number")
		}
	}
	if r.Times < 0 {
		return fmt.Errorf("times %d is negative", r.Times)
	}
	return nil
}
