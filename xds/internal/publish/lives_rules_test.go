package publish

import (
	"fmt"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// What no life may come to.

// check holds what is sent against what may be.
func (l *life) check(n *simNode, r *resources.Resource) {
	for _, f := range l.pub.rollout.Refusals() {
		if f.Type == r.Type && f.Name == r.Name && f.Version == r.Version && !l.excepted(n.group, r) {
			l.fail("%s is sent %s %s %q again, which %s refused", n.id, r.Type, r.Name, r.Body, f.Node)
		}
	}
	if r.Type != resources.RouteType || string(r.Body) != fmt.Sprint("plan ", l.pub.rollout.Report().Rolling) && len(l.first) > 0 {
		return
	}
	if !strings.Contains(l.first[r.Version], "["+n.group+"]") {
		// A plan comes to a further group only when the ones before have it. Groups
		// that are empty get it together, and may fill up then.
		for _, o := range l.nodes {
			if l.wanted > l.churn && o.steady() && o.group != n.group && strings.Contains(l.first[r.Version], "["+o.group+"]") {
				shown, has := l.shown[o.group].Get(r.Type, r.Name), o.has[r.Type][r.Name]
				if shown.Version == r.Version && (has == nil || has.Version != r.Version) {
					l.fail("%s is sent %q, which %s of a group before has not acknowledged", n.id, r.Body, o.id)
				}
			}
		}
		if _, begun := l.first[r.Version]; begun || len(l.first) > 0 {
			l.first[r.Version] += "[" + n.group + "]"
		} else {
			l.first[r.Version] = "[a][b][]" // the first table goes to all
		}
	}
}

// excepted reports whether a group may be sent what was refused: it goes back to
// other routes and has taken the resource, or nothing can stand in for it.
func (l *life) excepted(group string, r *resources.Resource) bool {
	for _, g := range l.pub.rollout.Report().Groups {
		if g.Name != group || g.KeptRefused == 0 || r.Type == resources.RouteType {
			continue
		}
		if !g.Reverting {
			l.kept = true
		}
		return true
	}
	return false
}

// excuse notes that the node, as far as the publisher knows, was away or late for
// longer than anybody waits. It counts again when it has all that it is shown.
func (n *simNode) excuse() {
	for _, sub := range n.subs {
		if !n.left.IsZero() && !sub.begun && time.Since(n.left) >= reconnectTime {
			n.excused = true
		}
	}
	for _, g := range n.l.pub.state.report.Groups {
		if _, fenced := g.Fenced[n.id]; fenced {
			n.excused = true
		}
	}
}

// steady reports whether the publisher must wait for the node.
func (n *simNode) steady() bool {
	n.excuse()
	if !n.up || n.excused || !n.ready || len(n.has[resources.RouteType]) == 0 {
		return false
	}
	return true
}

// verify holds a node's routes against its clusters and endpoints.
func (n *simNode) verify() {
	if !n.steady() {
		return
	}
	routes := n.has[resources.RouteType]["r"]
	plan := n.l.plans[string(routes.Body)]
	for k := range plan.Stages {
		if n.has[resources.ClusterType][clusterOf(k)] == nil {
			n.l.fail("%s routes by %q to %s, which it does not have", n.id, routes.Body, clusterOf(k))
		}
	}
	if missing := lacking(plan, resources.View{}, func(k int) *resources.Resource {
		return n.has[resources.EndpointType][serviceOfStage(k)]
	}); missing != "" {
		n.l.fail("%s routes by %q, but %s", n.id, routes.Body, missing)
	}
}
