// Package route finds the route of a request in a table by Envoy's rules.
//
// It supports the matches that package client decodes. Invariant: a request gets the
// same route as in Envoy 1.40, including for unusual header values (signs, blanks,
// leading zeros, several lines).
package route

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/cascadeinfer/cascade/xds/client"
)

// Table is a route table prepared for lookups. It is immutable.
type Table struct {
	*client.RouteTable
	exact    map[string]*client.VirtualHost
	suffixes []wildcard // longest first
	prefixes []wildcard
	any      *client.VirtualHost
}

type wildcard struct {
	text string // without the star
	host *client.VirtualHost
}

// NewTable prepares a table.
func NewTable(t *client.RouteTable) *Table {
	out := &Table{RouteTable: t, exact: make(map[string]*client.VirtualHost)}
	for _, h := range t.Hosts {
		for _, d := range h.Domains {
			switch {
			case d == "*":
				out.any = h
			case strings.HasPrefix(d, "*"):
				out.suffixes = append(out.suffixes, wildcard{d[1:], h})
			case strings.HasSuffix(d, "*"):
				out.prefixes = append(out.prefixes, wildcard{d[:len(d)-1], h})
			default:
				out.exact[d] = h
			}
		}
	}
	longest := func(a, b wildcard) int { return len(b.text) - len(a.text) }
	slices.SortStableFunc(out.suffixes, longest)
	slices.SortStableFunc(out.prefixes, longest)
	return out
}

// Host returns the virtual host of an authority, or nil: the exact name, then
// the longest suffix, then the longest prefix, then "*". A star stands for at
// least one character.
func (t *Table) Host(authority string) *client.VirtualHost {
	if len(t.exact) == 0 && len(t.suffixes) == 0 && len(t.prefixes) == 0 {
		return t.any
	}
	if t.IgnorePort {
		authority = WithoutPort(authority)
	}
	name := strings.ToLower(authority)
	if h := t.exact[name]; h != nil {
		return h
	}
	for _, w := range t.suffixes {
		if len(name) > len(w.text) && strings.HasSuffix(name, w.text) {
			return w.host
		}
	}
	for _, w := range t.prefixes {
		if len(name) > len(w.text) && strings.HasPrefix(name, w.text) {
			return w.host
		}
	}
	return t.any
}

// WithoutPort drops ":port" from an authority; an IPv6 address keeps its
// brackets.
func WithoutPort(authority string) string {
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && strings.IndexByte(authority[i:], ']') < 0 {
		return authority[:i]
	}
	return authority
}

// Request is the part of a request by which a route is chosen.
type Request struct {
	Method    string
	Authority string
	Path      string      // without the query, undecoded
	Target    string      // the path with the query; what ":path" means to a header match
	Header    http.Header // in canonical MIME form
}

// Pick returns the first route of the host that matches, or nil.
func Pick(h *client.VirtualHost, r *Request) *client.Route {
	for _, route := range h.Routes {
		if matches(route, r) {
			return route
		}
	}
	return nil
}

func matches(route *client.Route, r *Request) bool {
	path, want := r.Path, route.Path
	if !route.Exact {
		if len(path) < len(want) {
			return false
		}
		path = path[:len(want)]
	}
	if path != want && !(route.FoldCase && strings.EqualFold(path, want)) {
		return false
	}
	for i := range route.Headers {
		if !headerMatches(&route.Headers[i], r) {
			return false
		}
	}
	return true
}

// headerMatches tests one condition. Each line of a header is tested separately, and one
// match suffices. A missing header fails every test, inverted or not, except the test
// for its absence.
func headerMatches(m *client.HeaderMatch, r *Request) bool {
	var one [1]string
	var lines []string
	switch m.Name {
	case ":method":
		one[0] = r.Method
		lines = one[:]
	case ":authority", "Host":
		one[0] = r.Authority
		lines = one[:]
	case ":path":
		one[0] = r.Target
		lines = one[:]
	default:
		lines = r.Header[m.Name]
	}
	if m.Kind == client.MatchPresent {
		return (len(lines) > 0) != m.Invert
	}
	for _, line := range lines {
		if lineMatches(m, line) {
			return !m.Invert
		}
	}
	return m.Invert && len(lines) > 0
}

func lineMatches(m *client.HeaderMatch, line string) bool {
	switch m.Kind {
	case client.MatchExact:
		return line == m.Exact || m.FoldCase && strings.EqualFold(line, m.Exact)
	case client.MatchPrefix:
		return strings.HasPrefix(line, m.Exact)
	case client.MatchRegex:
		return m.Regex.MatchString(line)
	}
	// A sign and leading zeros are allowed; the value must fit an int64.
	n, err := strconv.ParseInt(textproto.TrimString(line), 10, 64)
	return err == nil && m.Start <= n && n < m.End
}
