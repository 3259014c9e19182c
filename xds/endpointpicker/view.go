package endpointpicker

import (
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// View is a plan prepared for picks. It is immutable. Endpoint pickers and the embedded
// proxy choose by it, so that a fleet may have both.
type View struct {
	plan   *resources.Routing
	models map[string]*Model // by name
	list   []*Model          // sorted by name
	pool   *Model            // of all requests, where there is no control plane; see UpdatePool
}

// Model is a model with its stages and the settings of its length estimate.
type Model struct {
	resources.LengthMeta
	Stages balance.Picker
}

// Estimator returns the estimator of the model's requests; of nil, an unknown model, that with the default ratio.
func (m *Model) Estimator() length.Estimator {
	if m == nil {
		return length.Estimator{}
	}
	return length.Estimator{BytesPerToken: m.BytesPerToken}
}

// NewView prepares a plan.
func NewView(plan *resources.Routing) *View {
	v := &View{plan: plan, models: make(map[string]*Model)}
	for i := range plan.Models {
		from := &plan.Models[i]
		m := &Model{LengthMeta: from.LengthMeta}
		all := make([]balance.Endpoint, len(from.Replicas))
		for i, r := range from.Replicas {
			all[i] = balance.NewEndpoint(r.At, r.Weight, r.Health == resources.Healthy)
		}
		for k, stage := range from.Plan.Stages {
			s := balance.PickerStage{High: stage.High}
			for _, tier := range from.Tiers(k) {
				endpoints := make([]balance.Endpoint, len(tier))
				for i, at := range tier {
					endpoints[i] = all[at]
				}
				s.Tiers = append(s.Tiers, endpoints)
			}
			m.Stages = append(m.Stages, s)
		}
		v.models[m.Model] = m
		v.list = append(v.list, m)
	}
	return v
}

// ByHost returns the model that a host name selects, nil if the request must name it.
func (v *View) ByHost(authority string) *Model {
	if v.plan == nil {
		return nil
	}
	if m := v.plan.ByHost(authority); m != nil {
		return v.models[m.Model]
	}
	return nil
}

// ByName returns the model that a request names, directly or by an adapter; nil for an
// unknown name.
func (v *View) ByName(name string) *Model {
	if v.plan == nil {
		return nil
	}
	if m := v.plan.ByName(name); m != nil {
		return v.models[m.Model]
	}
	return nil
}

// Any returns one of the models, for a request that names none and has no body; nil if
// there is none.
func (v *View) Any(random uint64) *Model {
	if n := len(v.list); n > 0 {
		return v.list[random%uint64(n)]
	}
	return nil
}
