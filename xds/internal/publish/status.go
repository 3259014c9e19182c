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

	blocked         string // why target, the newest plan, is not rolled out
	target, rolling policies.Epoch
	epochs          map[string]policies.Epoch // of the applied route tables, by version
}

// Group is one group of nodes, in the JSON form of GET /status.
type Group struct {
	Name   string         `json:"name"`             // empty: the default group
	Phase  string         `json:"phase"`            // idle, add, flip, watch or retire
	Epoch  policies.Epoch `json:"published_epoch"`  // of its routes
	Nodes  int            `json:"nodes"`            // connected nodes that count, without observers
	Reason string         `json:"reason,omitempty"` // what it waits for; empty if it does not wait

	phase            phase
	set              resources.Set
	until            time.Time         // when its watch ends, or its removed endpoints are dropped at the latest
	fenced, refusing map[string]string // by node: the reason, and what it refuses
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

// status returns the present state of the rollout, without reasons.
func (r *rollout) status() Status {
	s := Status{Phase: idle.String(), Refused: slices.Clone(r.refused), epochs: r.epochs}
	s.blocked = r.whyStopped()
	s.Stopped = s.blocked != ""
	if r.target != nil {
		s.target, s.blocked = r.target.epoch(), cmp.Or(s.blocked, r.whyBlocked())
	}
	if r.rolling != nil {
		s.rolling = r.rolling.epoch()
	}
	for i, g := range r.groups {
		v := Group{Name: g.name, Nodes: g.nodes, phase: g.shownPhase(), set: g.set, fenced: maps.Clone(g.fenced), refusing: make(map[string]string)}
		v.Phase = v.phase.String()
		if len(g.live) > 0 {
			v.Epoch = g.routes().epoch()
		}
		switch {
		case v.phase == retirement:
			v.until = g.removeBy
		case v.phase == watch && g.started:
			v.until = r.lastSettled.Add(r.cfg.Watch)
		}
		for _, f := range g.refusals {
			if text := f.String(); v.refusing[f.node] == "" || text < v.refusing[f.node] {
				v.refusing[f.node] = text
			}
		}
		if s.Phase == idle.String() {
			s.Phase = v.Phase
		}
		if i == 0 || v.Epoch < s.Epoch {
			s.Epoch = v.Epoch
		}
		s.Groups = append(s.Groups, v)
	}
	return s
}

// Status returns the present state.
func (p *Publisher) Status() Status {
	p.mu.Lock()
	s := p.state // its parts are replaced, and never changed
	s.Err = p.err
	p.mu.Unlock()
	if s.Err == nil && s.blocked != "" {
		s.Err, s.Blocked = errors.New(s.blocked), true
	}
	now, groups, views := time.Now(), slices.Clone(s.Groups), make(map[string]groupView, len(s.Groups))
	for i := range groups {
		groups[i].Reason = groups[i].reason(s, now)
		views[groups[i].Name] = groupView{groups[i], newVersions(groups[i].set, awaitedTypes)}
	}
	s.Groups = groups
	l := p.cfg.Ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.nodes {
		s.Nodes = append(s.Nodes, n.status(views[n.group], s.epochs))
	}
	slices.SortFunc(s.Nodes, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return s
}

// groupView is a group with what its nodes are compared with.
type groupView struct {
	Group
	versions targetVersions
}

// status describes a node, given the epochs of route tables. The ledger must be locked.
func (n *node) status(g groupView, epochs map[string]policies.Epoch) Node {
	reason, fenced := g.fenced[n.id]
	refusal := g.refusing[n.id]
	out := Node{
		ID: n.id, Cluster: n.cluster, Group: n.group, Connected: len(n.streams) > 0, Since: n.since,
		Fenced: fenced, Refusing: refusal != "", Unlisted: !n.counts, Observer: n.isObserver(), NACKs: n.nacks, LastError: n.lastError, LastErrorAt: n.errorAt,
		Unrouted: len(n.streams) > 0 && n.lastError != "" && !n.hasAcked([]string{resources.RouteType, resources.RoutingType}),
		Slots:    maps.Clone(n.slots), Current: len(n.streams) > 0 && len(epochs) > 0 && !n.isBehind(g.versions), Types: make(map[string]NodeType),
	}
	for _, stream := range n.streams {
		for typ, sub := range stream.types {
			t := out.Types[resources.ShortType(typ)]
			t.Acked += len(sub.applied)
			t.Pending += len(sub.sent)
			out.Types[resources.ShortType(typ)] = t
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
	case g.Reason != "":
		out.Reason = g.Reason
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

// reason returns what a group waits for.
func (g Group) reason(s Status, now time.Time) string {
	name := groupLabel(g.Name)
	left := max(g.until.Sub(now), 0).Round(100 * time.Millisecond).Seconds()
	switch {
	case g.phase == watch && left > 0:
		return fmt.Sprintf("%s: watched for another %.1f s", name, left)
	case g.phase == watch:
		return fmt.Sprintf("%s: waiting until all groups have the plan", name)
	case g.phase == retirement:
		return fmt.Sprintf("%s: removed endpoints drain for at most %.1f s", name, left)
	case g.phase == add:
		return fmt.Sprintf("%s: waiting for acknowledgements of the next plan's endpoints", name)
	case g.phase == flip:
		return fmt.Sprintf("%s: waiting for acknowledgements of the routes", name)
	case s.blocked != "" && g.Epoch != s.target:
		return fmt.Sprintf("blocked at plan %d: %s", g.Epoch, s.blocked)
	case s.rolling != 0 && g.Epoch != s.rolling:
		return fmt.Sprintf("%s: waiting for its turn to get plan %d", name, s.rolling)
	}
	return ""
}
