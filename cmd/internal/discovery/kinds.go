package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// maxKinds bounds how many kinds of new replicas one decision tries; see resolveKinds.
const maxKinds = 32

// resolveKinds leaves out replicas that the fleet file would refuse beside the others,
// such as one of another profile without the capacity that a mixed model must state. What
// the last decision has comes first, then the largest group of new ones: one bad Pod
// never removes others.
func (d *decider) resolveKinds() {
	groups := make(map[string][]*candidate)
	for _, c := range d.all {
		if c.State != LeftOut {
			groups[d.kindOf(c)] = append(groups[d.kindOf(c)], c)
		}
	}
	keys := make([]string, 0, len(groups))
	for k := range groups {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(-compareBools(a == "", b == ""), len(groups[b])-len(groups[a]), strings.Compare(a, b))
	})
	var accepted []*candidate
	for i, k := range keys {
		if i >= maxKinds {
			for _, c := range groups[k] {
				c.leaveOut("the Pods differ in more than %d combinations of model, profile, tp, capacity and role", maxKinds)
			}
			continue
		}
		accepted = d.accept(accepted, groups[k])
	}
}

// kindOf returns a text that is equal for new replicas that the fleet file treats alike;
// "" for those that are as in the last decision.
func (d *decider) kindOf(c *candidate) string {
	if before, ok := d.known[c.Replica]; ok {
		before.Drain = c.replica.Drain
		if sameSettings(before, c.replica) {
			return ""
		}
	}
	r := c.replica
	return strings.Join([]string{r.Model, r.Profile, strconv.Itoa(r.TP), strconv.FormatInt(int64(r.KVTokens), 10), strconv.Itoa(r.Batch), r.Role}, "\x00")
}

// sameSettings reports whether two replicas have the same settings.
func sameSettings(a, b config.Replica) bool {
	return a.ID == b.ID && a.Model == b.Model && a.Address == b.Address && a.Peer == b.Peer && a.Admin == b.Admin && a.Engine == b.Engine &&
		a.Host == b.Host && max(a.TP, 1) == max(b.TP, 1) && a.Profile == b.Profile && a.KVTokens == b.KVTokens && a.Batch == b.Batch && a.Role == b.Role && a.Drain == b.Drain
}

// accept adds a group of candidates to those accepted, but for the ones that the fleet
// file refuses, which return to their last settings, if they have any, or are left out.
func (d *decider) accept(accepted, group []*candidate) []*candidate {
	errs := d.checkCandidates(slices.Concat(accepted, group))
	if len(errs) == 0 {
		return append(accepted, group...)
	}
	var good []*candidate
	bad := make(map[int]*config.FieldError)
	for _, e := range errs {
		if i, ok := replicaIndex(e.Path); ok && i >= len(accepted) && bad[i-len(accepted)] == nil {
			bad[i-len(accepted)] = e
		}
	}
	for i, c := range group {
		if bad[i] == nil {
			good = append(good, c)
		}
	}
	if more := d.checkCandidates(slices.Concat(accepted, good)); len(more) > 0 {
		for i := range group { // the group does not fit in, whoever is named
			if bad[i] == nil {
				bad[i] = more[0]
			}
		}
		good = nil
	}
	for i, c := range group {
		e := bad[i]
		if e == nil {
			continue
		}
		if before, ok := d.known[c.Replica]; ok && d.kindOf(c) != "" {
			drain := c.replica.Drain
			c.replica, c.State = before, Kept
			c.Reason = fmt.Sprintf("%s: %s; its replica keeps its former settings", field(e.Path), e.Msg)
			if c.replica.Drain = drain; drain {
				c.State = Draining
			}
			if len(d.checkCandidates(slices.Concat(accepted, good, []*candidate{c}))) == 0 {
				good = append(good, c)
				continue
			}
		}
		c.leaveOut("%s: %s", field(e.Path), e.Msg)
	}
	return append(accepted, good...)
}

// checkCandidates returns what the fleet file has against replicas, and not what it
// misses.
func (d *decider) checkCandidates(list []*candidate) []*config.FieldError {
	replicas := make([]config.Replica, len(list))
	for i, c := range list {
		replicas[i] = c.replica
	}
	return slices.DeleteFunc(d.check(replicas), func(e *config.FieldError) bool {
		_, ok := replicaIndex(e.Path)
		return !ok
	})
}

// check validates the fleet file with replicas.
func (d *decider) check(replicas []config.Replica) []*config.FieldError {
	fleet := d.rules.Base
	fleet.Models = slices.Clone(fleet.Models) // Validate fills in defaults
	fleet.Replicas = slices.Clone(replicas)
	return fleet.Validate()
}

// replicaIndex returns the index in a path like replicas[2].address.
func replicaIndex(path string) (int, bool) {
	rest, ok := strings.CutPrefix(path, "replicas[")
	digits, _, found := strings.Cut(rest, "]")
	i, err := strconv.Atoi(digits)
	return i, ok && found && err == nil
}

// field returns the last part of a path: what is wrong with a replica.
func field(path string) string {
	if _, name, ok := strings.Cut(path, "]."); ok {
		return name
	}
	return "replica"
}
