package length

import (
	"fmt"
	"strings"

	"github.com/cascadeinfer/cascade/policies/length"
)

// models finds a model by host or by name.
type models struct {
	names    map[string]string // name → the same name, so that bytes need no copy
	hosts    map[string]string // exact host → model, "" when shared
	suffixes []suffix          // in the order given; the longest match wins
}

type suffix struct{ end, model string }

func newModels(list []Model) (models, error) {
	m := models{names: make(map[string]string), hosts: make(map[string]string)}
	for i, x := range list {
		switch {
		case x.Name == "" || len(x.Name) > length.MaxModel:
			return m, fmt.Errorf("length: Models[%d]: the name %q must have 1 to %d bytes", i, x.Name, length.MaxModel)
		case strings.ContainsFunc(x.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) || strings.TrimSpace(x.Name) != x.Name:
			return m, fmt.Errorf("length: Models[%d]: the name %q cannot be a header value; remove control characters and surrounding blanks", i, x.Name)
		case m.names[x.Name] != "":
			return m, fmt.Errorf("length: Models[%d]: the name %q occurs twice", i, x.Name)
		}
		m.names[x.Name] = x.Name
		hosts := x.Hosts
		if len(hosts) == 0 && len(list) == 1 {
			hosts = []string{"*"}
		}
		for _, h := range hosts {
			if err := m.add(strings.ToLower(h), x.Name); err != nil {
				return m, fmt.Errorf("length: Models[%d]: %w", i, err)
			}
		}
	}
	return m, nil
}

// add adds a host; a second model for the same host makes it shared.
func (m *models) add(host, model string) error {
	end, wild := strings.CutPrefix(host, "*")
	if strings.ContainsAny(end, "* \t/") || host == "" {
		return fmt.Errorf(`the host %q must be a name, "*" or "*" and a suffix`, host)
	}
	if !wild {
		if had, ok := m.hosts[host]; ok && had != model {
			model = ""
		}
		m.hosts[host] = model
		return nil
	}
	for i, s := range m.suffixes {
		if s.end == end {
			if s.model != model {
				m.suffixes[i].model = ""
			}
			return nil
		}
	}
	m.suffixes = append(m.suffixes, suffix{end, model})
	return nil
}

// byHost returns the model that alone owns the authority's host, or "".
// As in Envoy, a name beats a wildcard and a longer suffix a shorter one.
func (m *models) byHost(authority string) string {
	host := strings.ToLower(authority)
	// Drop the port; an IPv6 address keeps its brackets.
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	if model, ok := m.hosts[host]; ok {
		return model
	}
	best := suffix{}
	found := false
	for _, s := range m.suffixes {
		// Envoy's suffix wildcard matches at least one character.
		matches := s.end == "" || len(host) > len(s.end) && strings.HasSuffix(host, s.end)
		if matches && (!found || len(s.end) > len(best.end)) {
			best, found = s, true
		}
	}
	return best.model
}

// byName returns the model that a body names, directly or by an adapter, or "".
func (s *Server) byName(name []byte) string {
	model := s.models.names[string(name)]
	if model == "" && len(name) > 0 && s.config.BaseOf != nil {
		// The result must be a known model: it becomes a header that routes match.
		model = s.models.names[s.config.BaseOf(string(name))]
	}
	return model
}
