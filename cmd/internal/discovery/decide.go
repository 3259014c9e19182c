package discovery

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// Decide returns the replicas that the Pods of a cluster are. before is the last
// decision's Replicas, which may be those that an earlier process has written; none at
// the first start. An error says what to change, and that the last decision stays.
func Decide(rules Rules, c Cluster, before []config.Replica) (Decision, error) {
	if len(c.Pods) > MaxPods {
		return Decision{}, fmt.Errorf("%s selects %d Pods, and a fleet has at most %d: narrow its selector", c.Source, len(c.Pods), MaxPods)
	}
	d := decider{rules: rules, cluster: c, known: make(map[string]config.Replica, len(before)), endpoints: make(map[string]Endpoint, len(c.Endpoints))}
	for _, r := range before {
		d.known[r.ID] = r
	}
	for _, e := range c.Endpoints {
		// A Pod is in several slices where it has several addresses; one that is ready counts.
		if old, ok := d.endpoints[e.PodUID]; !ok || cmp.Or(compareBools(old.Ready, e.Ready), cmp.Compare(old.Port, e.Port)) < 0 {
			d.endpoints[e.PodUID] = e
		}
	}
	pods := slices.Clone(c.Pods)
	slices.SortFunc(pods, func(a, b Pod) int { return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID)) })
	for _, pod := range pods {
		d.addPod(pod)
	}
	d.resolveAddresses()
	d.resolveKinds()
	// What one model keeps may be the last one of another.
	for again, rounds := true, 0; again && rounds <= len(rules.Base.Models); rounds++ {
		again = false
		for _, m := range rules.Base.Models {
			again = d.keepLast(m.Name) || again
		}
	}
	return d.result()
}

// candidate is a Pod, or a replica whose Pod is gone, on its way to a decision.
type candidate struct {
	Status
	replica config.Replica // unless the state is LeftOut
	known   bool           // the last decision has the replica
}

// decider holds the state of one decision.
type decider struct {
	rules     Rules
	cluster   Cluster
	known     map[string]config.Replica // the last decision, by id
	endpoints map[string]Endpoint       // by the UID of the Pod
	all       []*candidate
}

// leaveOut makes a candidate no replica.
func (c *candidate) leaveOut(format string, args ...any) {
	c.State, c.Reason, c.replica = LeftOut, fmt.Sprintf(format, args...), config.Replica{}
}

// addPod adds a Pod with the state that it has by itself.
func (d *decider) addPod(pod Pod) {
	e := d.endpoints[pod.UID]
	r, err := d.rules.configure(pod, cmp.Or(e.Port, d.cluster.Port))
	before, known := d.known[r.ID]
	c := &candidate{Status: Status{Pod: pod.Name, Replica: r.ID, State: Serving}, replica: r, known: known}
	d.all = append(d.all, c)
	if pod.Ended {
		c.leaveOut("its containers have ended")
		return
	}
	if err != nil {
		if !known {
			c.leaveOut("%s", err)
			return
		}
		c.State, c.Reason, c.replica = Kept, fmt.Sprintf("%s; its replica keeps its former settings", err), before
		// Another annotation's error must not end a drain that was ordered.
		c.replica.Drain = pod.Settings[Prefix+"drain"] == "true"
	}
	why, ready := d.readiness(pod, e)
	switch {
	case ready && c.replica.Drain:
		reason := "annotation " + Prefix + "drain"
		if c.Reason != "" { // why its former settings stay
			reason += "; " + c.Reason
		}
		c.State, c.Reason = Draining, reason
	case ready:
	case known:
		c.State, c.Reason, c.replica.Drain = Draining, why, true
	default:
		c.leaveOut("%s", why)
	}
}

// readiness returns why a Pod takes no new requests.
func (d *decider) readiness(pod Pod, e Endpoint) (why string, ready bool) {
	switch {
	case pod.Terminating:
		return "the Pod terminates", false
	// Without conditions of its own, discovery goes by what another process has written, or itself before.
	case !d.rules.SetsConditions && pod.gateClosed():
		return "the Pod has the readiness gate " + ConditionType + ", which only discovery with --conditions sets", false
	case d.cluster.ByEndpoints && !e.Ready && !pod.Gated: // a gated Pod is no ready endpoint before it is a replica
		return "the Pod is no ready endpoint of " + d.cluster.Source, false
	case (!d.cluster.ByEndpoints || pod.Gated) && !pod.Ready:
		return "the Pod is not ready", false
	}
	return "", true
}

// resolveAddresses leaves out replicas whose addresses others have: what serves wins
// over what drains, and what is known over what is new. Addresses clash where Pods share
// the network of their node, and for a moment where one is used again.
func (d *decider) resolveAddresses() {
	order := slices.Clone(d.all)
	slices.SortStableFunc(order, func(a, b *candidate) int {
		return cmp.Or(compareBools(a.replica.Drain, b.replica.Drain), -compareBools(a.known, b.known), strings.Compare(a.Replica, b.Replica))
	})
	taken := make(map[string]*candidate)
	for _, c := range order {
		if c.State != LeftOut {
			d.takeAddresses(c, taken)
		}
	}
}

// takeAddresses records the addresses of a replica, or leaves it out if one is taken.
func (d *decider) takeAddresses(c *candidate, taken map[string]*candidate) {
	own := addressesOf(c.replica)
	for _, a := range own {
		if other := taken[a]; other != nil {
			c.leaveOut("its address %s is also that of Pod %s: give it other ports (%sport, peer-port, admin-port and engine-port)", a, other.Pod, Prefix)
			return
		}
	}
	for _, a := range own {
		taken[a] = c
	}
}

// addressesOf returns where a replica listens, and where its engine does: on loopback, of the same host.
func addressesOf(r config.Replica) []string {
	out := []string{r.Address, r.Peer, r.Engine + " of " + hostOf(r.Address)}
	if r.Admin != "" {
		out = append(out, r.Admin)
	}
	return out
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// keepLast keeps replicas of a model in their last state if the model would have none
// that takes new requests and generates answers: those whose Pods are there, and
// otherwise those whose Pods are gone. Requests then fail by themselves where they must,
// and all the others of the fleet go on. It reports whether it has kept any.
func (d *decider) keepLast(model string) (kept bool) {
	served := func(r config.Replica) bool { return r.Model == model && !r.Drain && r.Role != config.RolePrefill }
	for _, c := range d.all {
		if c.State != LeftOut && served(c.replica) {
			return false
		}
	}
	for _, c := range d.all {
		if before, ok := d.known[c.Replica]; ok && c.State == Draining && c.replica.Model == model && served(before) && c.replica.Role != config.RolePrefill {
			c.State, c.replica.Drain, kept = Kept, false, true
			c.Reason += "; it stays, as " + model + " has no other replica that takes new requests"
		}
	}
	if kept {
		return true
	}
	defer func() { d.leaveOutUnlike(model, kept) }()
	taken := make(map[string]bool) // ids and addresses; known replicas do not clash with each other
	for _, c := range d.all {
		if c.State != LeftOut {
			taken[c.Replica] = true
			for _, a := range addressesOf(c.replica) {
				taken[a] = true
			}
		}
	}
	var clashing []config.Replica
	for _, id := range slices.Sorted(maps.Keys(d.known)) {
		switch r := d.known[id]; {
		case !served(r):
		case taken[id] || slices.ContainsFunc(addressesOf(r), func(a string) bool { return taken[a] }):
			clashing = append(clashing, r)
		default:
			d.keepWithoutPod(r, model)
			kept = true
		}
	}
	if kept || len(clashing) == 0 {
		return kept
	}
	// Another Pod has the address of the last one. It waits: a fleet file needs a replica of
	// each model.
	for _, c := range d.clashes(clashing[0]) {
		c.leaveOut("its address is also that of replica %s, the last one of %s: it joins when %s has another", clashing[0].ID, model, model)
	}
	d.keepWithoutPod(clashing[0], model)
	return true
}

// leaveOutUnlike leaves out what drains or prefills for a model if the fleet file refuses it beside
// those that were kept.
func (d *decider) leaveOutUnlike(model string, kept bool) {
	if !kept {
		return
	}
	var all []*candidate
	for _, c := range d.all {
		if c.State != LeftOut {
			all = append(all, c)
		}
	}
	errs := d.checkCandidates(all)
	if len(errs) == 0 {
		return
	}
	for _, c := range all {
		if c.replica.Model == model && c.State != Kept {
			c.leaveOut("%s: %s", field(errs[0].Path), errs[0].Msg)
		}
	}
}

// clashes returns the candidates with an address, or the id, of a replica.
func (d *decider) clashes(r config.Replica) (out []*candidate) {
	own := addressesOf(r)
	for _, c := range d.all {
		if c.State != LeftOut && (c.Replica == r.ID || slices.ContainsFunc(addressesOf(c.replica), func(a string) bool { return slices.Contains(own, a) })) {
			out = append(out, c)
		}
	}
	return out
}

// keepWithoutPod keeps a replica whose Pod is gone or is left out.
func (d *decider) keepWithoutPod(r config.Replica, model string) {
	why := model + " has no other replica: it stays listed until there is one"
	for _, c := range d.all {
		if c.Replica == r.ID {
			c.State, c.Reason, c.replica = Kept, c.Reason+"; "+why, r
			return
		}
	}
	name, _, _ := PodOf(r.ID)
	d.all = append(d.all, &candidate{Status: Status{Pod: name, Replica: r.ID, State: Kept, Reason: "the Pod is gone; " + why}, replica: r, known: true})
}

// result returns the decision, once all of it is valid.
func (d *decider) result() (Decision, error) {
	var out Decision
	for _, c := range d.all {
		out.Pods = append(out.Pods, c.Status)
		if c.State != LeftOut {
			out.Replicas = append(out.Replicas, c.replica)
		}
	}
	slices.SortFunc(out.Replicas, func(a, b config.Replica) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(out.Pods, func(a, b Status) int {
		return cmp.Or(strings.Compare(a.Pod, b.Pod), strings.Compare(a.Replica, b.Replica), strings.Compare(a.Reason, b.Reason))
	})
	if len(out.Replicas) == 0 {
		return out, fmt.Errorf("%s selects no Pod that can be a replica (of %d): %s", d.cluster.Source, len(d.cluster.Pods), d.firstReason(out))
	}
	if errs := d.check(out.Replicas); len(errs) > 0 {
		return out, fmt.Errorf("%s: %s: %s", d.cluster.Source, errs[0].Path, errs[0].Msg)
	}
	return out, nil
}

// firstReason returns why the first Pod is left out.
func (d *decider) firstReason(out Decision) string {
	if len(out.Pods) == 0 {
		return "none exists yet"
	}
	return out.Pods[0].Reason
}
