package policies

import "slices"

// Adapters says which replicas of one model can run a request by the name that
// its client asked for. A name that no replica lists is the model's own, or one
// that the engines know by themselves: it narrows nothing. The zero value knows
// no adapter. It is not changed after NewAdapters and safe for concurrent use.
type Adapters struct{ loaded map[string][]ReplicaID }

// NewAdapters reads the adapters of a model's replicas.
func NewAdapters(replicas []Replica) Adapters {
	a := Adapters{loaded: make(map[string][]ReplicaID)}
	for _, r := range replicas {
		for _, name := range r.Adapters {
			if !slices.Contains(a.loaded[name], r.ID) {
				a.loaded[name] = append(a.loaded[name], r.ID)
			}
		}
	}
	return a
}

// Restricts reports whether requests for a name can run on some replicas only.
func (a Adapters) Restricts(name string) bool { return len(a.loaded[name]) > 0 }

// CanServe reports whether a replica can run a request for a name.
func (a Adapters) CanServe(id ReplicaID, name string) bool {
	ids := a.loaded[name]
	return len(ids) == 0 || slices.Contains(ids, id)
}
