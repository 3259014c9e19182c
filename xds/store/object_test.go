package store_test

import (
	"math"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/storetest"
	"github.com/cascadeinfer/cascade/xds/store"
)

func TestInvalid(t *testing.T) {
	testkit.NoError(t, storetest.Object(1).Validate())
	for name, edit := range map[string]func(*store.Object){
		"two weights":              func(o *store.Object) { o.Weights = append(o.Weights, o.Weights[0]) },
		"a weight of 0":            func(o *store.Object) { o.Weights[0].Weight = 0 },
		"a pin of a later epoch":   func(o *store.Object) { o.Pins[0].Epoch = 2 },
		"cuts that fall":           func(o *store.Object) { o.Pins[1].Cuts[0] = 10 },
		"a missing count":          func(o *store.Object) { o.FormerPlans[1].Counts = nil },
		"an empty stage":           func(o *store.Object) { o.FormerPlans[0].Counts[0] = 0 },
		"a former plan twice":      func(o *store.Object) { o.FormerPlans = append(o.FormerPlans, o.FormerPlans[0]) },
		"a negative hold":          func(o *store.Object) { o.Holds[0].For = -1 },
		"too many requests":        func(o *store.Object) { o.Counts[0].Requests = 1<<62 + 1 },
		"a ratio of 0":             func(o *store.Object) { o.Ratios[0].Milli = 0 },
		"a gain of NaN":            func(o *store.Object) { o.Reasons[0].Gain = math.NaN() },
		"a plan with a hole":       func(o *store.Object) { o.Plans[0].Stages[0].High = 5 },
		"two plans of a model":     func(o *store.Object) { o.Plans[1].Model = o.Plans[0].Model },
		"a plan of a later epoch":  func(o *store.Object) { o.Epoch = 0 },
		"a replica drained twice":  func(o *store.Object) { o.Drained = append(o.Drained, o.Drained[0]) },
		"a replica without a name": func(o *store.Object) { o.Plans[1].Stages[0].Replicas[0] = "" },
		"no replica":               func(o *store.Object) { o.Plans[1].Stages[0].Replicas = nil },
		"an absurd epoch":          func(o *store.Object) { o.Epoch = math.MaxUint64 },
	} {
		o := storetest.Object(1)
		edit(&o)
		if o.Validate() == nil {
			t.Errorf("an object with %s is valid", name)
		}
	}
}
