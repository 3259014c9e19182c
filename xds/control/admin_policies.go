package control

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/internal/identity"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Policies is the response, as JSON, of GET /policies and of every command about
// policies: the desired state of the slots, and the state of each host. Fields are only
// ever added.
type Policies struct {
	Time time.Time `json:"time"`
	// Enabled says that this control plane accepts pushed modules.
	Enabled bool `json:"enabled"`
	// Slots are those that have ever had a module or that a host reports, by
	// name.
	Slots []PolicySlot `json:"slots"`
	// Warnings are about the module of a push, which was admitted: when it decides nothing.
	Warnings []string `json:"warnings,omitempty"`
}

// PolicySlot is one slot of the fleet.
type PolicySlot struct {
	Slot lifecycle.Kind `json:"slot"`
	// Stable is what the fleet runs; absent: the native policy. Previous is what a
	// module rollback of Stable restores.
	Stable    *PolicyModule    `json:"stable,omitempty"`
	Previous  *PolicyModule    `json:"previous,omitempty"`
	Candidate *PolicyCandidate `json:"candidate,omitempty"`
	// RolledBack are the generations that never run again, ascending.
	RolledBack []PolicyRollback `json:"rolled_back,omitempty"`
	Nodes      []PolicyNode     `json:"nodes"`
}

// PolicyModule is one generation of a slot.
type PolicyModule struct {
	Generation lifecycle.Generation `json:"generation"`
	Name       string               `json:"name"`
	Version    string               `json:"version"`
	SHA256     lifecycle.Digest     `json:"sha256"`
	Size       int                  `json:"bytes"`
	Signers    []string             `json:"signers"`
	By         string               `json:"by,omitempty"` // the operator who pushed it
	At         time.Time            `json:"at"`
}

// PolicyCandidate is a generation that is being promoted.
type PolicyCandidate struct {
	PolicyModule
	Goal     lifecycle.Goal `json:"goal"`
	Permille int            `json:"permille,omitempty"`
	Scope    string         `json:"scope,omitempty"`
	Since    time.Time      `json:"since"` // of the goal
}

// PolicyRollback is a generation that never runs again.
type PolicyRollback = policyslots.Ended

// PolicyNode is a slot on one host: a replica's migrator or a control plane.
type PolicyNode struct {
	Node string `json:"node"`
	// ReportAge is the seconds since it reported; absent: it never did.
	ReportAge *float64 `json:"report_age_seconds,omitempty"`
	lifecycle.SlotStatus
}

// PolicySummary is one slot of a Status.
type PolicySummary struct {
	Slot      lifecycle.Kind   `json:"slot"`
	Stable    *PolicyModule    `json:"stable,omitempty"` // absent: the native policy
	Candidate *PolicyCandidate `json:"candidate,omitempty"`
	// Nodes counts the hosts that have the slot and reported recently, or refused it by xDS. On OnStable of
	// them the stable generation decides, or the native policy if there is none; on
	// OnCandidate the candidate; Refusing refuse both.
	Nodes       int `json:"nodes"`
	OnStable    int `json:"on_stable"`
	OnCandidate int `json:"on_candidate"`
	Refusing    int `json:"refusing,omitempty"`
	// Rejected is why hosts have rejected the candidate, or else the stable generation; empty: none has.
	Rejected string `json:"rejected,omitempty"`
	// Hosts are the slot's states on each host, by name; GET /policies also has their
	// modules.
	Hosts []PolicyNode `json:"hosts"`
}

// Policies returns what GET /policies answers about some slots, or about all if
// none is given. It must not be changed.
func (c *Control) Policies(only ...lifecycle.Kind) Policies {
	seen := c.observe()
	out := Policies{Time: seen.status.Time, Enabled: c.cfg.Admitter != nil, Slots: []PolicySlot{}}
	for _, s := range seen.slots {
		if len(only) == 0 || slices.Contains(only, s.Slot) {
			out.Slots = append(out.Slots, s)
		}
	}
	return out
}

// changedPolicies returns slots as a command has just changed them.
func (c *Control) changedPolicies(slots []lifecycle.Kind) Policies {
	c.observer.expire()
	return c.Policies(slots...)
}

// policySlots returns the slots that are stored or that a host has.
func policySlots(stored []policyslots.Slot, reports []policyslots.Report, nodes []Node, now time.Time) (out []PolicySlot) {
	refusals := nackedSlots(nodes)
	for _, kind := range lifecycle.Kinds() {
		s := policySlotOf(policyslots.Find(stored, kind))
		s.Nodes = policyNodesOf(kind, reports, refusals, now)
		if len(s.Nodes) > 0 || slices.ContainsFunc(stored, func(o policyslots.Slot) bool { return o.Kind == kind }) {
			out = append(out, s)
		}
	}
	return out
}

// policySummaries returns the slots as in /status.
func policySummaries(slots []PolicySlot, reports []policyslots.Report, now time.Time) (out []PolicySummary) {
	for _, s := range slots {
		sum := PolicySummary{Slot: s.Slot, Stable: s.Stable, Candidate: s.Candidate, Hosts: slices.Clone(s.Nodes)}
		stable := lifecycle.Native
		if s.Stable != nil {
			stable = s.Stable.Generation
			sum.setRejected(stable, now, reports)
		}
		if s.Candidate != nil {
			sum.setRejected(s.Candidate.Generation, now, reports)
		}
		for i := range sum.Hosts {
			n := &sum.Hosts[i]
			n.Modules = nil
			refusedOnly := n.ReportAge == nil && n.Refused != "" // a NACK over an open stream
			if !refusedOnly && (n.ReportAge == nil || *n.ReportAge > policyslots.FreshFor.Seconds()) {
				continue
			}
			sum.Nodes++
			switch {
			case n.Refused != "":
				sum.Refusing++
			case n.Active == stable:
				sum.OnStable++
			case s.Candidate != nil && n.Active == s.Candidate.Generation:
				sum.OnCandidate++
			}
		}
		out = append(out, sum)
	}
	return out
}

// setRejected notes why hosts have rejected a generation, if some have.
func (s *PolicySummary) setRejected(g lifecycle.Generation, now time.Time, reports []policyslots.Report) {
	if why, _ := policyslots.Rejected(s.Slot, g, now, reports); why != "" {
		s.Rejected = fmt.Sprintf("generation %d: %s", g, why)
	}
}

func policySlotOf(s policyslots.Slot) PolicySlot {
	out := PolicySlot{Slot: s.Kind, Stable: policyModuleOf(s.Stable), Previous: policyModuleOf(s.Previous), RolledBack: s.Ended, Nodes: []PolicyNode{}}
	if t := s.Candidate; t != nil {
		out.Candidate = &PolicyCandidate{*policyModuleOf(&t.Module), t.Goal, t.Permille, t.Scope, t.Since}
	}
	return out
}

func policyModuleOf(m *policyslots.Module) *PolicyModule {
	if m == nil {
		return nil
	}
	return &PolicyModule{
		Generation: m.Generation, Name: m.Name, Version: m.Version, SHA256: m.SHA256, Size: m.Size,
		Signers: append([]string{}, m.Signers...), By: m.By, At: m.At,
	}
}

// policyNodesOf lists the hosts of a slot: those that report it and, under the node id
// of their replica, those that refused it and report nothing about it.
func policyNodesOf(kind lifecycle.Kind, reports []policyslots.Report, refusals map[string]map[lifecycle.Kind]string, now time.Time) []PolicyNode {
	out := []PolicyNode{}
	for _, r := range reports {
		if s, ok := r.Status(kind); ok {
			age := now.Sub(r.At).Seconds()
			out = append(out, PolicyNode{Node: r.Node, ReportAge: &age, SlotStatus: s})
		}
	}
	for id, kinds := range refusals {
		if kinds[kind] == "" {
			continue
		}
		i := slices.IndexFunc(out, func(n PolicyNode) bool {
			return n.Node == id || identity.MigratorNodeID(n.Node) == id
		})
		if i < 0 {
			out = append(out, PolicyNode{Node: id, SlotStatus: lifecycle.SlotStatus{Kind: kind}})
			i = len(out) - 1
		}
		if out[i].Refused == "" {
			out[i].Refused = kinds[kind]
		}
	}
	slices.SortFunc(out, func(a, b PolicyNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}
