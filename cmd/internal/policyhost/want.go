package policyhost

import (
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Resources returns the names of the extension configs of the slots of some kinds.
func Resources(kinds []abi.Kind) []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = policyslots.ResourceName(lifecycle.Kind(k.String()))
	}
	return names
}

// CheckResource returns why an extension config is not a valid spec of the slot with
// its name, now or ever: the text of a NACK.
func (n *Node) CheckResource(name string, typed *anypb.Any) error {
	spec, err := policyslots.DecodeResource(name, typed)
	if err != nil {
		if kind, ok := policyslots.KindOf(name); ok && kind.Known() {
			n.recordRefusal(kind, err)
		}
		return err
	}
	return n.Check(spec)
}

// ApplyResource makes an extension config, which has passed CheckResource, the spec of
// the slot with its name.
func (n *Node) ApplyResource(name string, typed *anypb.Any) error {
	spec, err := policyslots.DecodeResource(name, typed)
	if err != nil {
		return err
	}
	n.SetSpec(spec)
	return nil
}

// Apply implements control.Slots: it is CheckResource and ApplyResource for a control
// plane, which sends specs to its own slots.
func (n *Node) Apply(m *api.SlotSpec) error {
	spec, err := policyslots.Decode(m)
	if err != nil {
		return err
	}
	if err := n.Check(spec); err != nil {
		return err
	}
	n.SetSpec(spec)
	return nil
}
