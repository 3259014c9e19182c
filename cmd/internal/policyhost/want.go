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
func (h *Host) CheckResource(name string, typed *anypb.Any) error {
	spec, err := policyslots.DecodeResource(name, typed)
	if err == nil {
		return h.Slots.Check(spec)
	}
	if kind, ok := policyslots.KindOf(name); ok {
		h.Slots.Refuse(kind, err)
	}
	return err
}

// ApplyResource makes an extension config, which has passed CheckResource, the spec of
// the slot with its name.
func (h *Host) ApplyResource(name string, typed *anypb.Any) error {
	spec, err := policyslots.DecodeResource(name, typed)
	if err != nil {
		return err
	}
	return h.Slots.Apply(spec)
}

// Apply implements control.Slots: it is CheckResource and ApplyResource for a control
// plane, which sends specs to its own slots.
func (h *Host) Apply(m *api.SlotSpec) error {
	spec, err := policyslots.Decode(m)
	if err != nil {
		return err
	}
	return h.Slots.Apply(spec)
}

// Status returns the state of the slots as messages of a report, which belong to the
// caller.
func (h *Host) Status() []*api.SlotStatus {
	all := h.Slots.Status()
	out := make([]*api.SlotStatus, len(all))
	for i, s := range all {
		out[i] = policyslots.EncodeStatus(s)
	}
	return out
}
