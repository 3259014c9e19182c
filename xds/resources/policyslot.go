package resources

import (
	"fmt"
	"maps"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// RenderPolicySlot renders the wanted configuration of a policy slot as an extension
// config, which is sent only to hosts that subscribe to it by name. It belongs to no
// view and no plan: proxies do not use it, so it is not staged and no rollout waits for
// it; see Set.WithResources. A configuration that hosts could not decode is an error.
func RenderPolicySlot(w lifecycle.SlotSpec) (*Resource, error) {
	name := policyslots.ResourceName(w.Kind)
	c := &corev3.TypedExtensionConfig{Name: name, TypedConfig: Wrap(policyslots.Encode(w))}
	if err := c.ValidateAll(); err != nil {
		return nil, fmt.Errorf("slot %s: %w", w.Kind, err)
	}
	if _, err := policyslots.DecodeResource(name, c.TypedConfig); err != nil {
		return nil, fmt.Errorf("slot %s: %w", w.Kind, err)
	}
	r, err := Encode(ExtensionType, name, c)
	if err != nil {
		return nil, err
	}
	r.Unlisted = true
	return r, nil
}

// WithResources returns the set with further resources, each replacing the one of its
// type and name.
func (s Set) WithResources(rs ...*Resource) Set {
	if len(rs) == 0 {
		return s
	}
	out := Set{types: maps.Clone(s.types)}
	if out.types == nil {
		out.types = make(map[string]map[string]*Resource)
	}
	own := make(map[string]bool)
	for _, r := range rs {
		if !own[r.Type] {
			own[r.Type] = true
			if out.types[r.Type] = maps.Clone(out.types[r.Type]); out.types[r.Type] == nil {
				out.types[r.Type] = make(map[string]*Resource)
			}
		}
		out.types[r.Type][r.Name] = r
	}
	return out
}
