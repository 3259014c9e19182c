package fleet

import (
	"slices"

	"github.com/cascadeinfer/cascade/xds/internal/fleetstate"
	"github.com/cascadeinfer/cascade/xds/store"
)

// RecordRefusals stores resources that proxies have refused, for this control plane and
// all others of the store. Snapshot.Refused lists them once they are stored. It never
// blocks; a failed write is retried.
func (f *Fleet) RecordRefusals(list []store.Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = mergeRefusals(f.refused, list)
	notify(f.refusedChanged)
}

// takeRefusals returns the refusals since the last call.
func (f *Fleet) takeRefusals() ProxiesRefused {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.refused
	f.refused = nil
	return ProxiesRefused{list}
}

// addRefusals keeps refusals until they are stored, and skips those that are stored
// already.
func (s *State) addRefusals(list []store.Refusal) {
	s.refusals = missingRefusals(mergeRefusals(s.refusals, list), s.object.Refused)
	if len(s.refusals) > 0 {
		s.toStore = max(s.toStore, writeRefusal)
	}
}

// mergeRefusals returns a list with more appended: each version of a resource once, the
// last ones up to the bound, all valid.
func mergeRefusals(list, more []store.Refusal) []store.Refusal {
	out := slices.Clone(list)
	for _, r := range missingRefusals(more, list) {
		if r.Type == "" || r.Version == "" {
			continue
		}
		for _, text := range [...]*string{&r.Type, &r.Name, &r.Version, &r.Node, &r.Text} {
			*text = fleetstate.Truncate(*text)
		}
		r.At = r.At.UTC().Round(0)
		if len(missingRefusals([]store.Refusal{r}, out)) > 0 {
			out = append(out, r)
		}
	}
	return out[max(len(out)-store.MaxRefused, 0):]
}

// missingRefusals lists the refusals in from that list lacks.
func missingRefusals(list, from []store.Refusal) []store.Refusal {
	var out []store.Refusal
	for _, r := range list {
		if !slices.ContainsFunc(from, func(o store.Refusal) bool {
			return o.Type == r.Type && o.Name == r.Name && o.Version == r.Version
		}) {
			out = append(out, r)
		}
	}
	return out
}
