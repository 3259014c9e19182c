package attach

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// RouteConfig is the input of HTTPRoute.
type RouteConfig struct {
	// Name and Namespace are those of the object; Namespace may be "".
	Name, Namespace string
	// Gateway is the name of the Gateway that gets the routes, GatewayNamespace its namespace
	// where it is another one.
	Gateway, GatewayNamespace string
	// Section is the listener of the Gateway; "" means all.
	Section string
	// Hosts are the host names of the routes; none means all.
	Hosts []string
	// Cuts are the boundaries between the stages, ascending.
	Cuts []policies.Tokens
	// Service names the backends: stage k's is the Service "<Service>-s<k>".
	Service string
	// Port is the port of these Services.
	Port uint16
}

func (c RouteConfig) validate() error {
	switch {
	case c.Name == "" || c.Gateway == "" || c.Service == "":
		return errors.New("give the names of the route, of the Gateway and of the Services")
	case c.Port == 0:
		return errors.New("give the port of the Services")
	case len(c.Cuts) >= policies.MaxStages:
		return fmt.Errorf("%d boundaries: a plan has at most %d stages", len(c.Cuts), policies.MaxStages)
	}
	low := policies.Tokens(0)
	for _, cut := range c.Cuts {
		if cut <= low || cut >= policies.Unbounded {
			return fmt.Errorf("boundary %d: boundaries must be positive and ascending", cut)
		}
		low = cut
	}
	return nil
}

// The parts of an HTTPRoute that are used here.
type (
	routeSpec struct {
		ParentRefs []parentRef `json:"parentRefs"`
		Hostnames  []string    `json:"hostnames,omitempty"`
		Rules      []routeRule `json:"rules"`
	}
	parentRef struct {
		Name        string `json:"name"`
		Namespace   string `json:"namespace,omitempty"`
		SectionName string `json:"sectionName,omitempty"`
	}
	routeRule struct {
		Matches     []routeMatch  `json:"matches,omitempty"`
		BackendRefs []backendRef  `json:"backendRefs"`
		Timeouts    routeTimeouts `json:"timeouts"`
	}
	routeMatch struct {
		Headers []headerMatch `json:"headers"`
	}
	headerMatch struct {
		Type  string `json:"type"`
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	backendRef struct {
		Name string `json:"name"`
		Port uint16 `json:"port"`
	}
	routeTimeouts struct {
		Request string `json:"request"`
	}
)

// HTTPRoute renders a plan's boundaries as an HTTPRoute of the Gateway API, for every
// implementation that matches headers by regular expressions. A request goes to the stage
// whose range contains the number in length.TokensHeader; the last stage gets the requests
// without one, too, and those for which no other stage is right.
//
// In contrast to the other configurations it depends on the plan: boundaries are changed by
// applying it again, and which replicas are in a stage is the owner's affair.
func HTTPRoute(c RouteConfig) (*Object, error) {
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	spec := routeSpec{ParentRefs: []parentRef{{c.Gateway, c.GatewayNamespace, c.Section}}, Hostnames: slices.Clone(c.Hosts)}
	low := policies.Tokens(0)
	for k := range len(c.Cuts) + 1 {
		rule := routeRule{
			BackendRefs: []backendRef{{c.Service + "-" + resources.StageName(k), c.Port}},
			Timeouts:    routeTimeouts{Request: "0s"}, // none: a stream takes as long as it takes
		}
		if k < len(c.Cuts) {
			for _, pattern := range rangePatterns(int64(low), int64(c.Cuts[k]-1)) {
				rule.Matches = append(rule.Matches, routeMatch{Headers: []headerMatch{{"RegularExpression", length.TokensHeader, pattern}}})
			}
			low = c.Cuts[k]
		}
		spec.Rules = append(spec.Rules, rule)
	}
	return &Object{"gateway.networking.k8s.io/v1", "HTTPRoute", ObjectMeta{c.Name, c.Namespace}, spec}, nil
}
