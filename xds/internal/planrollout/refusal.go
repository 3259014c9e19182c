package planrollout

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// One node's NACK stops the rollout of a plan but takes nothing from the nodes that run
// it: most often the node is at fault. A canary exists to be believed, and half of a
// group cannot be ignored: these quarantine the version, which rolls the plan back.

// refusals holds, by version and node, the NACKs that quarantine nothing yet.
type refusals map[key]map[string]Refusal

// add records a NACK and reports whether it is new.
func (s refusals) add(k key, f Refusal) bool {
	if s[k] == nil {
		s[k] = make(map[string]Refusal)
	}
	_, known := s[k][f.Node]
	s[k][f.Node] = f
	return !known
}

// refuses reports whether a node refuses any version.
func (s refusals) refuses(node string) bool {
	for _, by := range s {
		if _, ok := by[node]; ok {
			return true
		}
	}
	return false
}

// prune forgets the versions that are not in the group's set any more, and the nodes
// that lack nothing of it, or have left.
func (s refusals) prune(set resources.Set, behind map[string]bool) {
	for k, by := range s {
		for node := range by {
			if !behind[node] {
				delete(by, node)
			}
		}
		if r := set.Get(k.typ, k.name); len(by) == 0 || r == nil || ContentHash(r.Version) != k.version {
			delete(s, k)
		}
	}
}

// first returns the refusal that sorts first by node, type, name and version, of at
// least one, and how many nodes at most refuse one version.
func (s refusals) first() (first Refusal, refusing int) {
	var all []Refusal
	for _, by := range s {
		all = slices.AppendSeq(all, maps.Values(by))
		refusing = max(refusing, len(by))
	}
	return slices.MinFunc(all, func(a, b Refusal) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Version, b.Version))
	}), refusing
}

// byNode describes one refusal of each node.
func (s refusals) byNode() map[string]string {
	out := make(map[string]string)
	for _, by := range s {
		for node, f := range by {
			if text := f.describe(); out[node] == "" || text < out[node] {
				out[node] = text
			}
		}
	}
	return out
}

// isCanary reports whether a single node of the group decides: that of the first of
// several groups.
func (r *Rollout) isCanary(g *group) bool { return len(r.cfg.Groups) > 1 && g.name == r.cfg.Groups[0] }

// confirmRefusals quarantines the versions that enough of the group's connected nodes
// refuse, and returns them.
func (r *Rollout) confirmRefusals(g *group, nodes int) map[key]bool {
	confirmed := make(map[key]bool)
	for _, k := range sortKeys(g.refusals) {
		by := g.refusals[k]
		if !r.isCanary(g) && 2*len(by) < nodes {
			continue
		}
		delete(g.refusals, k)
		f, _ := refusals{k: by}.first()
		if r.quarantine(f) {
			confirmed[k] = true
			r.out.Refused = append(r.out.Refused, f)
			r.note(Note{Warn: true, Text: "version quarantined", Group: g.name, Node: f.Node, Why: f.describe()})
		}
	}
	return confirmed
}

// stoppedBy returns the refusals for which a group goes no further with the plan in
// progress: those of what came with the plan. In phase Add the routes are still those of
// an earlier plan.
func (r *Rollout) stoppedBy(g *group) refusals {
	by := make(refusals)
	if r.rolling == nil || g.revision != r.rolling {
		return by
	}
	for k, nodes := range g.refusals {
		old := r.stable.snapshot.Set.Get(k.typ, k.name)
		if (old == nil || old.Version != k.version) && (g.machine.phase != Add || slices.Contains(awaitedTypes[Add], k.typ)) {
			by[k] = nodes
		}
	}
	return by
}

// isStopped reports whether a group goes no further with the plan in progress.
func (r *Rollout) isStopped(g *group) bool { return len(r.stoppedBy(g)) > 0 }

// whyStopped says why the rollout is stopped; "" if it is not.
func (r *Rollout) whyStopped() string {
	for _, name := range r.cfg.Groups {
		g := r.groups[name]
		if by := r.stoppedBy(g); len(by) > 0 {
			f, n := by.first()
			return fmt.Sprintf("stopped in group %s: %s (%d of %d connected nodes; half of them would roll it back)", groupLabel(name), f.describe(), n, g.nodes)
		}
	}
	return ""
}

// withdrawStopped reverts a stopped rollout for the sake of a newer target, so that a
// node that refuses one plan does not hold back the next.
func (r *Rollout) withdrawStopped(now time.Time) {
	r.revertRollout(now, "plan withdrawn", r.whyStopped())
}
