package endpointpicker

import (
	"net/netip"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
)

// UpdatePool makes new requests use the endpoints of the gateway's InferencePool alone: for a
// picker without a control plane, instead of Update, and as Update from one goroutine at a time.
// They are one stage of a model without a name, whatever model a request names, and have equal
// shares. Without endpoints the picker still reports that it serves, and answers 503.
func (s *Server) UpdatePool(endpoints []netip.AddrPort) {
	tier := make([]balance.Endpoint, len(endpoints))
	for i, a := range endpoints {
		tier[i] = balance.NewEndpoint(a, 1, true)
	}
	m := &Model{Stages: balance.Picker{{High: policies.Unbounded, Tiers: [][]balance.Endpoint{tier}}}}
	s.view.Store(&View{pool: m, models: map[string]*Model{"": m}, list: []*Model{m}})
	s.setReady(true)
}
