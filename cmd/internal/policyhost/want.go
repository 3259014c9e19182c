package policyhost

import (
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slot"
	"github.com/cascadeinfer/cascade/wasm/slots"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policy"
)

// Resources are the names of the extension configs that are the slots of kinds.
func Resources(kinds []abi.Kind) []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = policy.ResourceName(k.String())
	}
	return names
}

// CheckResource says why an extension config cannot be the slot of its name, now
// or ever: what a NACK says.
func (n *Node) CheckResource(name string, typed *anypb.Any) error {
	w, err := policy.DecodeResource(name, typed)
	if err != nil {
		kind, _ := policy.KindOf(name)
		if k, ok := KindOf(kind); ok {
			n.note(k, err)
		}
		return err
	}
	return n.check(w)
}

// TakeResource has the slot of that name run what it says. It must have passed
// CheckResource.
func (n *Node) TakeResource(name string, typed *anypb.Any) error {
	w, err := policy.DecodeResource(name, typed)
	if err != nil {
		return err
	}
	return n.take(w)
}

// Want is CheckResource and TakeResource of a control plane, which asks itself.
func (n *Node) Want(m *api.PolicySlot) error {
	w, err := policy.Decode(m)
	if err != nil {
		return err
	}
	if err := n.check(w); err != nil {
		return err
	}
	return n.take(w)
}

func (n *Node) check(w policy.Want) error {
	want, err := wantOf(w)
	if err != nil {
		return err
	}
	return n.Check(want)
}

func (n *Node) take(w policy.Want) error {
	want, err := wantOf(w)
	if err != nil {
		return err
	}
	n.Take(want)
	return nil
}

// goals are the goals in the words of messages.
var goals = map[policy.Goal]slot.Goal{
	policy.Warm: slot.ToWarm, policy.Shadow: slot.ToShadow, policy.Canary: slot.ToCanary, policy.Active: slot.ToActive,
}

// wantOf is what a message wants in the words of slots.
func wantOf(w policy.Want) (slots.Want, error) {
	k, ok := KindOf(w.Kind)
	if !ok {
		return slots.Want{}, fmt.Errorf("kind: %.40q is not known here", w.Kind)
	}
	out := slots.Want{Kind: k, Previous: w.Previous}
	for i, c := range w.Candidates {
		goal, ok := goals[c.Goal]
		if !ok {
			return slots.Want{}, fmt.Errorf("candidates[%d].goal: %.40q is not known here", i, string(c.Goal))
		}
		out.Candidates = append(out.Candidates, slots.Candidate{
			Generation: c.Generation, Goal: goal, Permille: c.Permille, Scope: c.Scope, Proven: c.Proven,
			SHA256: sign.Digest(c.SHA256), Signature: c.Signature, Configuration: c.Configuration, Module: c.Module,
		})
	}
	for _, e := range w.RolledBack {
		out.RolledBack = append(out.RolledBack, slots.Ended{Generation: e.Generation, Reason: e.Reason})
	}
	return out, nil
}
