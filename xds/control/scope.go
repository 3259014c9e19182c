package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cascadeinfer/cascade/xds/policyslots"
)

// refine is the kind whose scopes are the replicas' nodes; those of the other kinds
// that decide for many are the models.
const refine = "refine"

// scoped is the scope in which a slot's candidate begins. Where the order names
// none it is the one it has, or the only one there is. One that nothing is in would
// be waited for for ever, so it is an error, which names those there are.
func (c *Control) scoped(kind string, g policyslots.Goal, scope string, has *policyslots.Trial) (string, error) {
	if policyslots.PerRequest(kind) || g == policyslots.Proven {
		return scope, nil
	}
	known := make(map[string]bool)
	if s := c.fleet.Snapshot(); s != nil {
		for _, m := range s.Models {
			if kind != refine {
				known[m.Name] = true
				continue
			}
			for _, r := range m.Replicas {
				known[r.Node] = true
			}
		}
	}
	names := slices.Sorted(maps.Keys(known))
	if scope == "" && has != nil {
		scope = has.Scope
	}
	if scope == "" && len(names) == 1 {
		scope = names[0]
	}
	switch {
	case len(names) == 0, known[scope]:
		return scope, nil
	case scope == "" && g != policyslots.Canary && g != policyslots.Active:
		return "", nil
	case scope == "":
		return "", malformed(fmt.Sprintf("slot %s: scope: name the one that tries it first, of %s", kind, strings.Join(names, ", ")))
	}
	return "", malformed(fmt.Sprintf("slot %s: scope %.40q: nothing is there; there are %s", kind, scope, strings.Join(names, ", ")))
}
