package length

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// newModels returns the models as a plan without replicas: hosts and names select a model as
// they do for the other data planes.
func newModels(list []Model) (*resources.Routing, error) {
	out := new(resources.Routing)
	for i, m := range list {
		switch {
		case m.Name == "" || len(m.Name) > length.MaxModel:
			return nil, fmt.Errorf("length: Models[%d]: the name %q must have 1 to %d bytes", i, m.Name, length.MaxModel)
		case strings.ContainsFunc(m.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) || strings.TrimSpace(m.Name) != m.Name:
			return nil, fmt.Errorf("length: Models[%d]: the name %q cannot be a header value; remove control characters and surrounding blanks", i, m.Name)
		}
		routed := resources.RoutedModel{LengthMeta: resources.LengthMeta{Model: m.Name}}
		for _, h := range m.Hosts {
			if h == "" {
				return nil, fmt.Errorf("length: Models[%d]: a host name must not be empty", i)
			}
			routed.Hosts = append(routed.Hosts, strings.ToLower(h))
		}
		out.Models = append(out.Models, routed)
	}
	return out, nil
}

// byHost returns the model that a request's authority selects, or "".
func (s *Server) byHost(authority string) string {
	if m := s.models.ByHost(authority); m != nil {
		return m.Model
	}
	return ""
}

// byName returns the model that a body names, directly or by an adapter, or "".
func (s *Server) byName(name string) string {
	m := s.models.ByName(name)
	if m == nil && name != "" && s.config.BaseOf != nil {
		// The result must be a known model: it becomes a header that routes match.
		m = s.models.ByName(s.config.BaseOf(name))
	}
	if m == nil {
		return ""
	}
	return m.Model
}
