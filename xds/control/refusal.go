package control

import (
	"slices"

	"github.com/cascadeinfer/cascade/xds/internal/publish"
	"github.com/cascadeinfer/cascade/xds/store"
)

// refused writes down what proxies of this control plane refused, so that no
// other one of the store sends it either, nor this one after a restart.
func (c *Control) refused(list []publish.Refusal) {
	out := make([]store.Refusal, len(list))
	for i, r := range list {
		out[i] = store.Refusal{Type: r.Type, Name: r.Name, Version: r.Version, Node: r.Node, Text: r.Text, At: r.At}
	}
	c.fleet.Refuse(out)
}

// freshRefusals are those of a list that another one has not.
func freshRefusals(list, known []store.Refusal) (fresh []publish.Refusal) {
	for _, r := range list {
		if !slices.ContainsFunc(known, func(o store.Refusal) bool {
			return o.Type == r.Type && o.Name == r.Name && o.Version == r.Version
		}) {
			fresh = append(fresh, publish.Refusal{Type: r.Type, Name: r.Name, Version: r.Version, Node: r.Node, Text: r.Text, At: r.At})
		}
	}
	return fresh
}
