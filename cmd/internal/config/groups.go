package config

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/xds/nodegroup"
)

// Group is a group of proxies. A proxy is in the first group of which a pattern
// matches its node id or its node cluster; * is any run of characters but "/".
type Group struct {
	// Name is what the status calls the group. Unique.
	Name string `yaml:"name"`
	// Nodes are patterns of node ids, Clusters of node clusters: one at least.
	Nodes    []string `yaml:"nodes,omitempty"`
	Clusters []string `yaml:"clusters,omitempty"`
}

// maxSoakGroup is longer than anybody looks at a new plan.
const maxSoakGroup = time.Hour

// NodeGroups are the groups as the control plane takes them.
func (c Control) NodeGroups() []nodegroup.Rule {
	rules := make([]nodegroup.Rule, len(c.Groups))
	for i, g := range c.Groups {
		rules[i] = nodegroup.Rule{Name: g.Name, Nodes: g.Nodes, Clusters: g.Clusters}
	}
	return rules
}

func (c Control) validateGroups(check *checker) {
	for i, r := range c.NodeGroups() {
		if _, err := nodegroup.New([]nodegroup.Rule{r}); err != nil {
			check.fail(fmt.Sprintf("control.groups[%d]", i), "%v", err)
			return
		}
	}
	if _, err := nodegroup.New(c.NodeGroups()); err != nil {
		check.fail("control.groups", "%v", err)
	}
	checkRange(check, "control.watch", c.Soak, 0, maxSoakGroup)
}
