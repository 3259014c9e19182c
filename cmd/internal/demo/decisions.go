package demo

import (
	"fmt"
	"io"

	"github.com/cascadeinfer/cascade/cmd/internal/fleetview"
	"github.com/cascadeinfer/cascade/cmd/internal/inprocess"
	"github.com/cascadeinfer/cascade/cmd/internal/policydev"
	"github.com/cascadeinfer/cascade/engine/report"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/wasm/abi"
	"github.com/cascadeinfer/cascade/xds/control"
)

// Decisions summarises the decisions of a run's modules.
type Decisions struct {
	Slots []SlotDecisions `json:"slots"`
	// Native is the result of deciding the recorded calls again with the native policies.
	Native policydev.RecheckResult `json:"decided_again_natively"`
}

// SlotDecisions are the decisions in one slot at the end of a run.
type SlotDecisions struct {
	Slot    lifecycle.Kind   `json:"slot"`
	Module  string           `json:"module"`
	Version string           `json:"version"`
	SHA256  lifecycle.Digest `json:"sha256"`
	Hosts   int              `json:"hosts"`    // hosts on which the module decides
	Of      int              `json:"of_hosts"` // hosts that have the slot
	Calls   uint64           `json:"calls"`
	Faults  uint64           `json:"faults"`
}

// CollectDecisions returns the decisions of the pushed modules in a running fleet.
func CollectDecisions(f *inprocess.Fleet) *Decisions {
	d := new(Decisions)
	nodes := make(map[lifecycle.Kind]control.PolicySlot)
	for _, s := range f.Control().Policies().Slots {
		nodes[s.Slot] = s
	}
	for _, h := range f.Hosts() {
		for _, status := range h.Slots.Status() {
			for _, module := range status.Modules {
				if module.Generation != status.Active {
					continue
				}
				d.Slots = append(d.Slots, newSlotDecisions(status, module, nodes[status.Kind]))
			}
		}
		for k := abi.Configure + 1; k < abi.NumKinds; k++ {
			d.Native = d.Native.Add(policydev.Recheck(h.Native, h.Slots.Records(k)))
		}
	}
	return d
}

func newSlotDecisions(s lifecycle.SlotStatus, l lifecycle.Status, fleet control.PolicySlot) SlotDecisions {
	line := SlotDecisions{
		Slot: s.Kind, Module: l.Name, Version: l.Version, SHA256: l.SHA256, Of: len(fleet.Nodes), Calls: l.Calls, Faults: l.Faults,
	}
	for _, n := range fleet.Nodes {
		if n.Active == s.Active {
			line.Hosts++
		}
	}
	return line
}

// Write prints the decisions. It prints nothing if d is nil.
func (d *Decisions) Write(w io.Writer) error {
	if d == nil {
		return nil
	}
	t := report.Table{
		Title:  "policies, as WebAssembly modules",
		Header: []string{"slot", "module", "version", "sha256", "hosts", "calls", "faults"}, Left: 4,
	}
	for _, s := range d.Slots {
		t.Rows = append(t.Rows, []string{
			string(s.Slot), s.Module, s.Version, s.SHA256.String()[:fleetview.ShownDigest],
			fmt.Sprintf("%d of %d", s.Hosts, s.Of), fmt.Sprint(s.Calls), fmt.Sprint(s.Faults),
		})
	}
	n := d.Native
	t.Notes = []string{fmt.Sprintf(
		"%d recorded calls, %d of them decided by modules, were decided again by the native policies: %d differ.",
		n.Calls, n.Modules, n.Different,
	)}
	if n.First != "" {
		t.Notes = append(t.Notes, "The first: "+n.First+".")
	}
	return t.Text(w)
}
