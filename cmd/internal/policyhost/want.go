package policyhost

import (
	"fmt"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/wasm/promotion"
	"github.com/cascadeinfer/cascade/wasm/sign"
	"github.com/cascadeinfer/cascade/wasm/slothost"
	"github.com/cascadeinfer/cascade/xds/api"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Resources are the names of the extension configs that are the slots of kinds.
func Resources(kinds []abi.Kind) []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = policyslots.ResourceName(k.String())
	}
	return names
}

// CheckResource says why an extension config cannot be the slot of its name, now
// or ever: what a NACK says.
func (n *Node) CheckResource(name string, typed *anypb.Any) error {
	w, err := policyslots.DecodeResource(name, typed)
	if err != nil {
		kind, _ := policyslots.KindOf(name)
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
	w, err := policyslots.DecodeResource(name, typed)
	if err != nil {
		return err
	}
	return n.take(w)
}

// Want is CheckResource and TakeResource of a control plane, which asks itself.
func (n *Node) Want(m *api.PolicySlot) error {
	w, err := policyslots.Decode(m)
	if err != nil {
		return err
	}
	if err := n.check(w); err != nil {
		return err
	}
	return n.take(w)
}

func (n *Node) check(w policyslots.Want) error {
	want, err := wantOf(w)
	if err != nil {
		return err
	}
	return n.Check(want)
}

func (n *Node) take(w policyslots.Want) error {
	want, err := wantOf(w)
	if err != nil {
		return err
	}
	n.Take(want)
	return nil
}

// goals are the goals in the words of messages.
var goals = map[policyslots.Goal]promotion.Goal{
	policyslots.Warm: promotion.ToWarm, policyslots.Shadow: promotion.ToShadow, policyslots.Canary: promotion.ToCanary, policyslots.Active: promotion.ToActive,
}

// wantOf is what a message wants in the words of slots.
func wantOf(w policyslots.Want) (slothost.Want, error) {
	k, ok := KindOf(w.Kind)
	if !ok {
		return slothost.Want{}, fmt.Errorf("kind: %.40q is not known here", w.Kind)
	}
	out := slothost.Want{Kind: k, Previous: w.Previous}
	for i, c := range w.Candidates {
		goal, ok := goals[c.Goal]
		if !ok {
			return slothost.Want{}, fmt.Errorf("candidates[%d].goal: %.40q is not known here", i, string(c.Goal))
		}
		out.Candidates = append(out.Candidates, slothost.Candidate{
			Generation: c.Generation, Goal: goal, Permille: c.Permille, Scope: c.Scope, Proven: c.Proven,
			SHA256: sign.Digest(c.SHA256), Signature: c.Signature, Configuration: c.Configuration, Module: c.Module,
		})
	}
	for _, e := range w.RolledBack {
		out.RolledBack = append(out.RolledBack, slothost.Ended{Generation: e.Generation, Reason: e.Reason})
	}
	return out, nil
}
