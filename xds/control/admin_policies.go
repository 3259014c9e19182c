package control

import (
	"cmp"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies/identity"
	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// Policies is what GET /policies and every command about policies answer, as
// JSON: what the slots should run, and the state of each host. Fields are only
// ever added.
type Policies struct {
	Time time.Time `json:"time"`
	// Enabled says that modules may be pushed here.
	Enabled bool `json:"enabled"`
	// Slots are those that have ever had a module or that a host reports, by
	// name.
	Slots []PolicySlot `json:"slots"`
}

// PolicySlot is one slot of the fleet.
type PolicySlot struct {
	Slot string `json:"slot"`
	// Stable is what the fleet runs; absent: the native policy. Previous is the
	// target of its rollback.
	Stable    *PolicyModule    `json:"stable,omitempty"`
	Previous  *PolicyModule    `json:"previous,omitempty"`
	Candidate *PolicyCandidate `json:"candidate,omitempty"`
	// RolledBack are the generations that never run again, ascending.
	RolledBack []PolicyRollback `json:"rolled_back,omitempty"`
	Nodes      []PolicyNode     `json:"nodes"`
}

// PolicyModule is one generation of a slot.
type PolicyModule struct {
	Generation uint64    `json:"generation"`
	Name       string    `json:"name"`
	Version    string    `json:"version"`
	SHA256     string    `json:"sha256"`
	Size       int       `json:"bytes"`
	Signers    []string  `json:"signers"`
	By         string    `json:"by,omitempty"` // the operator who pushed it
	At         time.Time `json:"at"`
}

// PolicyCandidate is a generation that is being promoted.
type PolicyCandidate struct {
	PolicyModule
	Goal     string    `json:"goal"`
	Permille int       `json:"permille,omitempty"`
	Scope    string    `json:"scope,omitempty"`
	Since    time.Time `json:"since"` // of the goal
}

// PolicyRollback is a generation that never runs again.
type PolicyRollback struct {
	Generation uint64    `json:"generation"`
	Name       string    `json:"name,omitempty"`
	Reason     string    `json:"reason"`
	By         string    `json:"by,omitempty"` // an operator, or the control plane that planned
	At         time.Time `json:"at"`
}

// PolicyNode is a slot on one host: a replica's migrator or a control plane.
type PolicyNode struct {
	Node string `json:"node"`
	// Host names the process that has the slots where several replicas share
	// one, each of which then reports the same calls. Absent: the node has its
	// own.
	Host string `json:"host,omitempty"`
	// ReportAge is the seconds since it reported; absent: it never did.
	ReportAge *float64 `json:"report_age_seconds,omitempty"`
	Active    uint64   `json:"active"` // the generation that decides; 0: the native policy
	// Candidate decides a share of the calls, or the scope; 0: none does.
	Candidate uint64 `json:"candidate,omitempty"`
	Permille  int    `json:"permille,omitempty"`
	Scope     string `json:"scope,omitempty"`
	Floor     uint64 `json:"floor,omitempty"`
	// Refused is why it refuses what the slot should run.
	Refused     string             `json:"refused,omitempty"`
	Generations []PolicyGeneration `json:"generations,omitempty"`
}

// PolicyGeneration is one generation on one host.
type PolicyGeneration struct {
	Generation uint64 `json:"generation"`
	State      string `json:"state"`
	Goal       string `json:"goal,omitempty"`
	Permille   int    `json:"permille,omitempty"`
	Name       string `json:"name,omitempty"`
	Version    string `json:"version,omitempty"`
	SHA256     string `json:"sha256,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Calls      uint64 `json:"calls"`
	Faults     uint64 `json:"faults"`
	// Starved counts calls that the native policy answered because the module
	// timed out while descheduled. They are no faults.
	Starved uint64 `json:"starved,omitempty"`
	// Compared counts the answers compared in the present phase; Differ and
	// Worse those among them that were.
	Compared uint64     `json:"compared"`
	Differ   uint64     `json:"differ"`
	Worse    uint64     `json:"worse"`
	Since    *time.Time `json:"since,omitempty"`
}

// PolicySummary is one slot of a Status.
type PolicySummary struct {
	Slot      string           `json:"slot"`
	Stable    *PolicyModule    `json:"stable,omitempty"` // absent: the native policy
	Candidate *PolicyCandidate `json:"candidate,omitempty"`
	// Nodes counts the hosts that have the slot and reported lately. On
	// OnStable of them the stable generation decides, or the native policy if
	// there is none; on OnCandidate the candidate; Refusing refuse both.
	Nodes       int `json:"nodes"`
	OnStable    int `json:"on_stable"`
	OnCandidate int `json:"on_candidate"`
	Refusing    int `json:"refusing,omitempty"`
	// Hosts are the slot on each host, by name; GET /policies also has their
	// generations.
	Hosts []PolicyNode `json:"hosts"`
}

// Policies returns what GET /policies answers about some slots, or about all if
// none is given.
func (c *Control) Policies(only ...string) Policies {
	now := time.Now()
	out := Policies{Time: now, Enabled: c.cfg.Admitter != nil, Slots: []PolicySlot{}}
	stored, reports, refusals := c.slots.stored(), c.slots.reports(now), c.slots.nackedSlots()
	for _, kind := range policyslots.Kinds() {
		if len(only) > 0 && !slices.Contains(only, kind) {
			continue
		}
		s := policySlotOf(policyslots.Of(stored, kind))
		s.Nodes = policyNodesOf(kind, reports, refusals, now)
		if len(s.Nodes) > 0 || slices.ContainsFunc(stored, func(o policyslots.Slot) bool { return o.Kind == kind }) {
			out.Slots = append(out.Slots, s)
		}
	}
	return out
}

// policySummaries returns the slots as in /status.
func (c *Control) policySummaries(now time.Time) (out []PolicySummary) {
	stored, reports, refusals := c.slots.stored(), c.slots.reports(now), c.slots.nackedSlots()
	for _, kind := range policyslots.Kinds() {
		s := policyslots.Of(stored, kind)
		shown := policySlotOf(s)
		sum := PolicySummary{Slot: kind, Stable: shown.Stable, Candidate: shown.Candidate, Hosts: policyNodesOf(kind, reports, refusals, now)}
		if len(sum.Hosts) == 0 && !slices.ContainsFunc(stored, func(o policyslots.Slot) bool { return o.Kind == kind }) {
			continue
		}
		var proven uint64
		if s.Proven != nil {
			proven = s.Proven.Generation
		}
		for i := range sum.Hosts {
			n := &sum.Hosts[i]
			n.Generations = nil
			if n.ReportAge == nil || *n.ReportAge > policyslots.Fresh.Seconds() {
				continue
			}
			sum.Nodes++
			switch {
			case n.Refused != "":
				sum.Refusing++
			case n.Active == proven:
				sum.OnStable++
			case s.Candidate != nil && n.Active == s.Candidate.Generation:
				sum.OnCandidate++
			}
		}
		out = append(out, sum)
	}
	return out
}

func policySlotOf(s policyslots.Slot) PolicySlot {
	out := PolicySlot{Slot: s.Kind, Stable: policyModuleOf(s.Proven), Previous: policyModuleOf(s.Previous), Nodes: []PolicyNode{}}
	if t := s.Candidate; t != nil {
		out.Candidate = &PolicyCandidate{*policyModuleOf(&t.Module), string(t.Goal), t.Permille, t.Scope, t.Since}
	}
	for _, e := range s.Ended {
		out.RolledBack = append(out.RolledBack, PolicyRollback(e))
	}
	return out
}

func policyModuleOf(m *policyslots.Module) *PolicyModule {
	if m == nil {
		return nil
	}
	return &PolicyModule{
		Generation: m.Generation, Name: m.Name, Version: m.Version, SHA256: m.SHA256.String(), Size: m.Size,
		Signers: append([]string{}, m.Signers...), By: m.By, At: m.At,
	}
}

// policyNodesOf lists the hosts of a slot: those that report it and, under the
// node id of their replica, those that refused it and report nothing.
func policyNodesOf(kind string, reports []policyslots.Report, refusals map[string]map[string]string, now time.Time) []PolicyNode {
	out := []PolicyNode{}
	for _, r := range reports {
		if s, ok := r.Status(kind); ok {
			age := now.Sub(r.At).Seconds()
			n := policyNodeOf(s)
			n.Node, n.ReportAge = r.Node, &age
			out = append(out, n)
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
			out = append(out, PolicyNode{Node: id})
			i = len(out) - 1
		}
		if out[i].Refused == "" {
			out[i].Refused = kinds[kind]
		}
	}
	slices.SortFunc(out, func(a, b PolicyNode) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

func policyNodeOf(s policyslots.Status) PolicyNode {
	n := PolicyNode{
		Active: s.Active, Candidate: s.Candidate, Permille: s.Permille, Scope: s.Scope, Floor: s.Floor, Refused: s.Refused, Host: s.Host,
	}
	for _, l := range s.Lives {
		life := PolicyGeneration{
			Generation: l.Generation, State: l.State, Goal: l.Goal, Permille: l.Permille, Name: l.Name, Version: l.Version,
			Reason: l.Reason, Calls: l.Calls, Faults: l.Faults, Differ: l.Differ, Worse: l.Worse,
			Compared: l.Compared, Starved: l.Starved,
		}
		if l.SHA256 != (policyslots.Digest{}) {
			life.SHA256 = l.SHA256.String()
		}
		if !l.Since.IsZero() {
			life.Since = &l.Since
		}
		n.Generations = append(n.Generations, life)
	}
	return n
}
