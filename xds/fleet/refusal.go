package fleet

import (
	"slices"

	"github.com/cascadeinfer/cascade/xds/store"
)

// Refuse is told what proxies have refused, so that no control plane of the
// store sends it again.
type Refuse struct{ List []store.Refusal }

func (Refuse) event() {}

// Refuse writes refused resources down, for this control plane and all others of
// the store: Snapshot.Refused has them when that is done. It never blocks; a
// store that does not take them is tried again.
func (f *Fleet) Refuse(list []store.Refusal) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = mergeRefused(f.refused, list)
	select {
	case f.barred <- struct{}{}:
	default:
	}
}

// barring is what Refuse was told since the last call.
func (f *Fleet) barring() Refuse {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.refused
	f.refused = nil
	return Refuse{list}
}

// refuse notes what was refused, until it is stored.
func (s *State) refuse(list []store.Refusal) {
	s.refusals = missing(mergeRefused(s.refusals, list), s.object.Refused)
	s.unsaved = s.unsaved || len(s.refusals) > 0
}

// mergeRefused returns a list with more behind it: each version of a resource
// once, the last of them, all valid.
func mergeRefused(list, more []store.Refusal) []store.Refusal {
	out := slices.Clone(list)
	for _, r := range missing(more, list) {
		if r.Type == "" || r.Version == "" {
			continue
		}
		for _, text := range [...]*string{&r.Type, &r.Name, &r.Version, &r.Node, &r.Text} {
			*text = cut(*text, store.MaxText)
		}
		r.At = r.At.UTC().Round(0)
		if len(missing([]store.Refusal{r}, out)) > 0 {
			out = append(out, r)
		}
	}
	return out[max(len(out)-store.MaxRefused, 0):]
}

// missing lists those that another list has not.
func missing(list, from []store.Refusal) []store.Refusal {
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
