package publish

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/lifecycle"
	"github.com/cascadeinfer/cascade/xds/internal/planrollout"
	"github.com/cascadeinfer/cascade/xds/loadreport"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// Status is the state of the rollout and of every node.
type Status struct {
	// Phase is idle if every group has the target, and otherwise the phase of
	// the first group that does not: add, flip, watch or retire.
	Phase string
	Epoch policies.Epoch // the oldest of the groups' route epochs
	// Err is the reason why the last view is not rolled out; nil if it is, or if
	// its rollout is in progress.
	Err     error
	Stopped bool    // the rollout goes no further, because a node refuses it
	Blocked bool    // Err is the reason why the last view must not be rolled out, or goes no further
	Groups  []Group // in the order of the rollout
	Nodes   []Node  // sorted by id
	Refused []Refusal
}

// Group is one group of nodes, in the JSON form of GET /status.
type Group struct {
	Name   string         `json:"name"`             // empty: the default group
	Phase  string         `json:"phase"`            // idle, add, flip, watch or retire
	Epoch  policies.Epoch `json:"published_epoch"`  // of its routes
	Nodes  int            `json:"nodes"`            // connected nodes that count, without observers
	Reason string         `json:"reason,omitempty"` // what it waits for; empty if it does not wait
}

// Node is one proxy or gRPC client, identified by its node id, with all its
// streams, in the JSON form of GET /status.
type Node struct {
	ID      string `json:"id"`
	Cluster string `json:"cluster,omitempty"`
	Group   string `json:"group,omitempty"` // empty: the default group
	// Plane is the other control plane to which it is connected; empty: the one that
	// answers.
	Plane string `json:"control_plane,omitempty"`
	// State is its progress in one word: gone, refuses, late, unlisted, current or following.
	State string `json:"state"`
	// Reason is why it has no newer plan; empty if it is current.
	Reason string `json:"reason,omitempty"`
	// Connected says that it has an open stream; Since is when that changed.
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since"`
	// Epoch is of the newest routes that it has acknowledged; 0: unknown.
	Epoch policies.Epoch `json:"epoch"`
	// Current says that it has acknowledged everything that was applied to its group; before the
	// first plan no node is current. Fenced says that it was late, keeps what it has, and delays no rollout.
	Current bool `json:"current"`
	Fenced  bool `json:"fenced,omitempty"`
	// Refusing says that it refuses what other nodes of its group run, which stops the
	// rollout in progress. Unlisted says that it is not known to be a proxy of the
	// fleet, so that its refusals do not count.
	Refusing bool `json:"refusing,omitempty"`
	Unlisted bool `json:"unlisted,omitempty"`
	// Unrouted says that it has refused what it was sent and has accepted no routes: it serves none of the
	// fleet's requests.
	Unrouted bool `json:"unrouted,omitempty"`
	// Types is its state by the last part of the type URL.
	Types map[string]NodeType `json:"types"`
	NACKs uint64              `json:"nacks"`
	// LastError is the text of its last NACK, redacted.
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	// Problems are what an embedded proxy lacks, as it reports with its load; the publisher leaves
	// them empty.
	Problems []loadreport.Problem `json:"problems,omitempty"`
	// Observer says that it routes nothing; rollouts never wait for it. Slots are its last
	// replies about policy slots.
	Observer bool                         `json:"-"`
	Slots    map[lifecycle.Kind]SlotReply `json:"-"`
}

// NodeType is a node's state for one resource type.
type NodeType struct {
	Acked   int `json:"acked"`   // resources that it has acknowledged
	Pending int `json:"pending"` // responses that it has not replied to
}

// Status returns the present state.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	st := p.state // its parts are replaced, and never changed
	p.mu.Unlock()
	now := time.Now()
	s := Status{Phase: planrollout.Idle.String(), Err: st.err, Stopped: st.report.Stopped, Refused: st.refusals}
	if s.Err == nil && st.report.Blocked != "" {
		s.Err, s.Blocked = errors.New(st.report.Blocked), true
	}
	groups := make(map[string]groupView, len(st.report.Groups))
	for i, g := range st.report.Groups {
		v := groupView{GroupReport: g, versions: newVersions(g.Set, awaitedTypes), reason: groupReason(g, st.report, now)}
		groups[g.Name] = v
		if s.Phase == planrollout.Idle.String() {
			s.Phase = g.Phase.String()
		}
		if i == 0 || g.Epoch < s.Epoch {
			s.Epoch = g.Epoch
		}
		s.Groups = append(s.Groups, Group{Name: g.Name, Phase: g.Phase.String(), Epoch: g.Epoch, Nodes: g.Nodes, Reason: v.reason})
	}
	l := p.cfg.Ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		s.Nodes = append(s.Nodes, n.status(groups[n.group], st.epochs))
	}
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// groupView is a group's report with the sets that its nodes are compared with.
type groupView struct {
	planrollout.GroupReport
	versions targetVersions
	reason   string
}

// status describes a node, given the epochs of route tables. The ledger must be locked.
func (n *node) status(g groupView, epochs map[string]policies.Epoch) Node {
	reason, fenced := g.Fenced[n.id]
	refusal := g.Refusing[n.id]
	out := Node{
		ID: n.id, Cluster: n.cluster, Group: n.group, Connected: len(n.streams) > 0, Since: n.since,
		Fenced: fenced, Refusing: refusal != "", Unlisted: !n.counts, Observer: n.isObserver(), NACKs: n.nacks, LastError: n.lastError, LastErrorAt: n.errorAt,
		Unrouted: len(n.streams) > 0 && n.lastError != "" && !n.hasAcked([]string{resources.RouteType, resources.RoutingType}),
		Slots:    maps.Clone(n.slots), Current: len(n.streams) > 0 && len(epochs) > 0 && !n.isBehind(g.versions), Types: make(map[string]NodeType),
	}
	for _, stream := range n.streams {
		for typ, sub := range stream.types {
			t := out.Types[shortType(typ)]
			t.Acked += len(sub.applied)
			t.Pending += len(sub.sent)
			out.Types[shortType(typ)] = t
			switch typ {
			case resources.RouteType:
				for _, version := range sub.applied {
					out.Epoch = max(out.Epoch, epochs[version])
				}
			case resources.RoutingType:
				out.Epoch = n.followedEpoch(sub, g.versions)
			}
		}
	}
	switch {
	case !out.Connected:
		out.Reason = "not connected"
	case refusal != "" && out.Unrouted:
		out.Reason = "has accepted no routes: " + refusal
	case refusal != "":
		out.Reason = "keeps its last good version: " + refusal
	case out.Unlisted && out.LastError != "" && !out.Current:
		out.Reason = "not in proxy.nodes, so its refusal does not count: " + out.LastError
	case fenced && out.LastError != "":
		out.Reason = "fenced: " + reason + ": " + out.LastError
	case fenced:
		out.Reason = "fenced: " + reason
	case g.reason != "":
		out.Reason = g.reason
	case len(epochs) == 0:
		out.Reason = "this control plane has published no plan yet, so the proxy keeps what it has"
	case !out.Current:
		out.Reason = "has not acknowledged everything that it was sent"
	}
	out.State = stateOf(out)
	return out
}

// stateOf names a node's progress.
func stateOf(n Node) string {
	switch {
	case !n.Connected:
		return "gone"
	case n.Refusing:
		return "refuses"
	case n.Fenced:
		return "late"
	case n.Unlisted:
		return "unlisted"
	case n.Current:
		return "current"
	}
	return "following"
}

// followedEpoch returns the epoch of the plan that a follower has; 0: unknown. After a restart
// of the control plane the follower has only said its version.
func (n *node) followedEpoch(sub *subscription, v targetVersions) policies.Epoch {
	for name, version := range sub.applied {
		if r := v.set.Get(resources.RoutingType, name); r != nil && r.Version == version {
			return resources.RoutingEpoch(r.Body)
		}
	}
	return n.planEpoch
}

// groupReason returns what a group waits for.
func groupReason(g planrollout.GroupReport, r planrollout.Report, now time.Time) string {
	name := g.Name
	if name == "" {
		name = "default"
	}
	left := max(g.Until.Sub(now), 0).Round(100 * time.Millisecond).Seconds()
	switch {
	case g.Phase == planrollout.Watch && left > 0:
		return fmt.Sprintf("%s: watched for another %.1f s", name, left)
	case g.Phase == planrollout.Watch:
		return fmt.Sprintf("%s: waiting until all groups have the plan", name)
	case g.Phase == planrollout.Retire:
		return fmt.Sprintf("%s: removed endpoints drain for at most %.1f s", name, left)
	case g.Phase == planrollout.Add:
		return fmt.Sprintf("%s: waiting for acknowledgements of the next plan's endpoints", name)
	case g.Phase == planrollout.Flip:
		return fmt.Sprintf("%s: waiting for acknowledgements of the routes", name)
	case r.Blocked != "" && g.Epoch != r.Target:
		return fmt.Sprintf("blocked at plan %d: %s", g.Epoch, r.Blocked)
	case r.Rolling != 0 && g.Epoch != r.Rolling:
		return fmt.Sprintf("%s: waiting for its turn to get plan %d", name, r.Rolling)
	}
	return ""
}
