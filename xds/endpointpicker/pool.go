package endpointpicker

import (
	"net/netip"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/endpointpick"
)

// UpdatePool makes new requests use the endpoints of the gateway's InferencePool alone: for a
// picker without a control plane, instead of Update, and as Update from one goroutine at a time.
// They are one stage of a model without a name, whatever model a request names, and have equal
// shares. Without endpoints the picker still reports that it serves, and answers 503.
func (s *Server) UpdatePool(endpoints []netip.AddrPort) {
	tier := make([]endpointpick.Endpoint, len(endpoints))
	for i, a := range endpoints {
		tier[i] = endpointpick.NewEndpoint(a, 1, true)
	}
	m := &model{stages: endpointpick.Model{{High: policies.Unbounded, Tiers: [][]endpointpick.Endpoint{tier}}}}
	s.view.Store(&view{pool: m, models: map[string]*model{"": m}, list: []*model{m}})
	s.setReady(true)
}
