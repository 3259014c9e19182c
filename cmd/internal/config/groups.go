package config

import (
	"fmt"
	"time"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Group is a group of proxies. A proxy is in the first group with a pattern that
// matches its node id or its node cluster; * matches any characters but "/".
type Group struct {
	// Name is the name of the group in the status. Unique.
	Name string `yaml:"name"`
	// Nodes are patterns of node ids. A group needs nodes, clusters or both.
	Nodes []string `yaml:"nodes,omitempty"`
	// Clusters are patterns of node clusters.
	Clusters []string `yaml:"clusters,omitempty"`
}

// maxSoak bounds Control.Soak.
const maxSoak = time.Hour

// NodeGroups returns the groups as the control plane's rules.
func (c Control) NodeGroups() []resources.GroupRule {
	rules := make([]resources.GroupRule, len(c.Groups))
	for i, g := range c.Groups {
		rules[i] = resources.GroupRule{Name: g.Name, Nodes: g.Nodes, Clusters: g.Clusters}
	}
	return rules
}

func (c Control) validateGroups(check *checker) {
	for i, r := range c.NodeGroups() {
		if _, err := resources.NewGroups([]resources.GroupRule{r}); err != nil {
			check.fail(fmt.Sprintf("control.groups[%d]", i), "%v", err)
			return
		}
	}
	if _, err := resources.NewGroups(c.NodeGroups()); err != nil {
		check.fail("control.groups", "%v", err)
	}
	checkRange(check, "control.soak", c.Soak, 0, maxSoak)
}
