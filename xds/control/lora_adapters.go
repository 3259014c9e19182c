package control

import (
	"sync/atomic"

	"github.com/cascadeinfer/cascade/xds/fleet"
)

// adapterIndex finds the base model of a LoRA adapter in the fleet's latest
// snapshot. It is safe for concurrent use; the zero value is ready.
type adapterIndex struct{ known atomic.Pointer[adapterModels] }

// adapterModels holds the models of the adapters in one snapshot.
type adapterModels struct {
	of    *fleet.Snapshot
	model map[string]string // by adapter
}

// modelOf returns the base model of an adapter, "" if no replica has loaded it.
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
