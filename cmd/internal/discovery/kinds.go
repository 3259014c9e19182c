package discovery

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/cmd/internal/config"
)

// maxKinds bounds how many kinds of new settings one decision tries; see resolveKinds.
const maxKinds = 32

// resolveKinds leaves out replicas that the fleet file would refuse beside the others,
// such as one of another profile without the capacity that a mixed model must state. What
// the last decision has comes first, with its former settings; then new settings of these, and
// then new replicas, each kind at once and the most frequent first. So one bad Pod never
// removes others.
func (d *decider) resolveKinds() {
	var known []*candidate
	changed, added := make(map[string][]*candidate), make(map[string][]*candidate)
	wanted := make(map[*candidate]config.Replica)
	for _, c := range d.all {
		switch kind := d.kindOf(c); {
		case c.State == LeftOut:
		case kind == "":
			known = append(known, c)
		case c.known:
			known, changed[kind] = append(known, c), append(changed[kind], c)
			wanted[c] = c.replica
			former := d.known[c.Replica]
			former.Drain = c.replica.Drain
			if hostOf(former.Address) != hostOf(c.replica.Address) { // another Pod may have the former address now
				former.Address, former.Peer, former.Admin = c.replica.Address, c.replica.Peer, c.replica.Admin
			}
			c.replica = former
		default:
			added[kind] = append(added[kind], c)
		}
	}
	accepted := d.accept(nil, known)
	for i, kind := range mostFrequent(changed) {
		group := slices.DeleteFunc(changed[kind], func(c *candidate) bool { return c.State == LeftOut })
		if i < maxKinds {
			d.change(accepted, group, wanted)
			continue
		}
		for _, c := range group {
			c.keepFormer(tooManyKinds)
		}
	}
	for i, kind := range mostFrequent(added) {
		if i < maxKinds {
			accepted = d.accept(accepted, added[kind])
			continue
		}
		for _, c := range added[kind] {
			c.leaveOut("%s", tooManyKinds)
		}
	}
}

func hostOf(address string) string {
	host, _, _ := net.SplitHostPort(address)
	return host
}

var tooManyKinds = fmt.Sprintf("the Pods differ in more than %d combinations of model, profile, tp, capacity and role", maxKinds)

// mostFrequent returns the kinds, those with the most candidates first.
func mostFrequent(groups map[string][]*candidate) []string {
	kinds := make([]string, 0, len(groups))
	for k := range groups {
		kinds = append(kinds, k)
	}
	slices.SortFunc(kinds, func(a, b string) int {
		return cmp.Or(len(groups[b])-len(groups[a]), strings.Compare(a, b))
	})
	return kinds
}

// keepFormer says why a replica keeps its former settings.
func (c *candidate) keepFormer(why string) {
	if c.State == Serving {
		c.State, c.Reason = Kept, why+"; its replica keeps its former settings"
	}
}

// change gives the candidates of a group, which are accepted with their former settings,
// the wanted ones, but for those that the fleet file refuses.
func (d *decider) change(accepted, group []*candidate, wanted map[*candidate]config.Replica) {
	former := make(map[*candidate]config.Replica, len(group))
	for _, c := range group {
		former[c], c.replica = c.replica, wanted[c]
	}
	d.settle(accepted, group, func(c *candidate, why string) {
		c.replica = former[c]
		c.keepFormer(why)
	})
}

// settle rejects the candidates of a group that the fleet file refuses, and the whole group if errors remain. It returns
// the candidates of all that are not left out.
func (d *decider) settle(all, group []*candidate, reject func(c *candidate, why string)) []*candidate {
	errs := d.checkCandidates(all)
	if len(errs) == 0 {
		return all
	}
	for _, e := range errs {
		if i, ok := replicaIndex(e.Path); ok && all[i].State != LeftOut && slices.Contains(group, all[i]) {
			reject(all[i], field(e.Path)+": "+e.Msg)
		}
	}
	isLeftOut := func(c *candidate) bool { return c.State == LeftOut }
	all = slices.DeleteFunc(slices.Clone(all), isLeftOut)
	if errs = d.checkCandidates(all); len(errs) == 0 {
		return all
	}
	for _, c := range group {
		if c.State != LeftOut {
			reject(c, field(errs[0].Path)+": "+errs[0].Msg)
		}
	}
	return slices.DeleteFunc(all, isLeftOut)
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
// file refuses, which are left out.
func (d *decider) accept(accepted, group []*candidate) []*candidate {
	return d.settle(slices.Concat(accepted, group), group, func(c *candidate, why string) { c.leaveOut("%s", why) })
}

// checkCandidates returns the errors of the fleet file that name one of these replicas; that
// it needs others, too, is none of them.
func (d *decider) checkCandidates(list []*candidate) []*config.FieldError {
	replicas := make([]config.Replica, len(list))
	for i, c := range list {
		replicas[i] = c.replica
	}
	errs := slices.DeleteFunc(d.check(replicas), func(e *config.FieldError) bool {
		_, ok := replicaIndex(e.Path)
		return !ok
	})
	for _, e := range errs {
		e.Msg = indexPattern.ReplaceAllStringFunc(e.Msg, func(path string) string {
			i, _ := replicaIndex(path)
			if i >= len(list) {
				return path // the text of an annotation
			}
			return "replica " + list[i].Replica + " "
		})
	}
	return errs
}

// indexPattern matches how the fleet file names a replica.
var indexPattern = regexp.MustCompile(`replicas\[[0-9]{1,5}\]\.?`)

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
