package policies

import "slices"

// Adapters maps the names that clients ask for to the replicas of one model that
// can run them. A name that no replica lists is the model's own name, or one that
// the engines resolve themselves: every replica can run it. The zero value knows
// no adapter. It does not change after NewAdapters and is safe for concurrent use.
type Adapters struct{ loaded map[string][]ReplicaID }

// NewAdapters collects the adapters of a model's replicas.
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

// Restricts reports whether requests for a name can run only on some replicas.
func (a Adapters) Restricts(name string) bool { return len(a.loaded[name]) > 0 }

// CanServe reports whether a replica can run a request for that name.
func (a Adapters) CanServe(id ReplicaID, name string) bool {
	ids := a.loaded[name]
	return len(ids) == 0 || slices.Contains(ids, id)
}
