package resources

import (
	"errors"
	"fmt"
	"hash/fnv"
	"path"
	"strings"
)

// GroupRule defines a group: the nodes whose id matches one of Nodes or whose
// cluster matches one of Clusters. Patterns are those of path.Match: * matches
// any run of characters except "/".
type GroupRule struct {
	Name     string
	Nodes    []string
	Clusters []string
}

// Canary is the group that a List has when no rules are given: every proxy
// whose id's hash falls into one of canaryShare.
const (
	// Canary is the group of a List without rules. It holds every proxy whose
	// id's hash is a multiple of canaryShare.
	Canary      = "canary"
	canaryShare = 8
)

// Bounds of a configuration.
const (
	maxRules    = 64
	maxPatterns = 256 // of one rule
)

// Groups are the groups of nodes that a new plan is rolled out to, in this order. A node's group is a pure function of
// its id and cluster, so that the cache, the ledger and every control plane of a fleet assign a node to the same group.
// Groups does not authenticate: package nodeauth binds ids to certificates.
//
//  1. Every node is in exactly one group; a node that matches no rule is in the default group "", which is last.
//  2. Observers, which route nothing, are in "" and follow what the whole fleet does.
//
// It is immutable. A nil Groups is one group for all.
type Groups struct{ rules []GroupRule }

// NewGroups checks the rules. Without any, the List has the group Canary.
func NewGroups(rules []GroupRule) (*Groups, error) {
	if len(rules) > maxRules {
		return nil, fmt.Errorf("%d groups: at most %d", len(rules), maxRules)
	}
	seen := make(map[string]bool)
	for i, r := range rules {
		if err := r.validate(); err != nil {
			return nil, fmt.Errorf("group %d %q: %w", i+1, r.Name, err)
		}
		if seen[r.Name] {
			return nil, fmt.Errorf("group %q: duplicate name", r.Name)
		}
		seen[r.Name] = true
	}
	return &Groups{rules: rules}, nil
}

func (r GroupRule) validate() error {
	switch {
	case r.Name == "":
		return errors.New("missing name: \"\" is the default group")
	case len(r.Nodes)+len(r.Clusters) == 0:
		return errors.New("no patterns: set nodes or clusters")
	case len(r.Nodes)+len(r.Clusters) > maxPatterns:
		return fmt.Errorf("more than %d patterns", maxPatterns)
	}
	return CheckPatterns(append(append([]string(nil), r.Nodes...), r.Clusters...))
}

// CheckPatterns returns an error for the first pattern that is not one of
// path.Match, or is empty.
func CheckPatterns(patterns []string) error {
	for _, p := range patterns {
		if _, err := path.Match(p, ""); err != nil || p == "" {
			return fmt.Errorf("pattern %q: must be a name, in which * matches any run of characters", p)
		}
	}
	return nil
}

// CheckSpecific returns an error for the first pattern that begins with a wildcard,
// and so may match names of any kind.
func CheckSpecific(patterns []string) error {
	for _, p := range patterns {
		if strings.ContainsAny(p[:min(1, len(p))], `*?[\`) {
			return fmt.Errorf("pattern %q: must begin with a character of the name", p)
		}
	}
	return nil
}

// GroupOf returns the group of a node: the first one whose rule matches.
func (l *Groups) GroupOf(id, cluster string) string {
	if l == nil || cluster == ObserverCluster {
		return ""
	}
	if len(l.rules) == 0 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(id)) // never fails
		if h.Sum32()%canaryShare == 0 {
			return Canary
		}
		return ""
	}
	for _, r := range l.rules {
		if MatchGroup(r.Nodes, id) || MatchGroup(r.Clusters, cluster) {
			return r.Name
		}
	}
	return ""
}

// MatchGroup reports whether a name matches one of the patterns.
func MatchGroup(patterns []string, name string) bool {
	for _, p := range patterns {
		if ok, err := path.Match(p, name); ok && err == nil {
			return true
		}
	}
	return false
}

// Names lists the groups in the order of the rollout; "" is the last one.
func (l *Groups) Names() []string {
	var names []string
	switch {
	case l == nil:
	case len(l.rules) == 0:
		names = append(names, Canary)
	default:
		for _, r := range l.rules {
			names = append(names, r.Name)
		}
	}
	return append(names, "")
}
