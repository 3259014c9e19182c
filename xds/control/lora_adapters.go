package control

import (
	"sync/atomic"

	"github.com/cascadeinfer/cascade/xds/fleet"
)

// adapterIndex finds the model of a LoRA adapter in the fleet's latest state. It is
// safe for concurrent use; the zero value is ready.
type adapterIndex struct{ known atomic.Pointer[adapterModels] }

// adapterModels is what one state of the fleet says.
type adapterModels struct {
	of    *fleet.Snapshot
	model map[string]string // by adapter
}

// modelOf returns the model of an adapter, "" for one that nobody has loaded.
func (a *adapterIndex) modelOf(s *fleet.Snapshot, name string) string {
	b := a.known.Load()
	if b == nil || b.of != s {
		b = &adapterModels{of: s, model: make(map[string]string)}
		if s != nil {
			for _, m := range s.Models {
				for _, r := range m.Replicas {
					for _, adapter := range r.Adapters {
						b.model[adapter] = m.Name
					}
				}
			}
		}
		a.known.Store(b)
	}
	return b.model[name]
}
