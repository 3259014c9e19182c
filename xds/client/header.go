package client

import (
	"errors"
	"fmt"
	"net/textproto"
	"regexp"
	"slices"
	"strings"

	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// MatchKind selects the test that a HeaderMatch makes.
type MatchKind int

// The tests a HeaderMatch can make.
const (
	MatchRange   MatchKind = iota // an integer in [Start, End)
	MatchExact                    // equal to Exact
	MatchPresent                  // the header exists
	MatchPrefix                   // it begins with Exact
	MatchRegex                    // Regex matches all of it
)

// HeaderMatch is one condition of a route. A header with several lines
// matches when any one of them does, as in Envoy.
type HeaderMatch struct {
	Name       string // canonical MIME form; pseudo headers as they are, ":path"
	Kind       MatchKind
	Start, End int64          // MatchRange: half open; MaxInt64 itself is in no range
	Exact      string         // MatchExact, MatchPrefix
	FoldCase   bool           // MatchExact ignores ASCII case
	Regex      *regexp.Regexp // MatchRegex; anchored at both ends
	Invert     bool           // the condition holds when the test fails
}

// decodeHeaderMatch refuses every test that a length route does not need.
func decodeHeaderMatch(f *faults, at string, m *routev3.HeaderMatcher) HeaderMatch {
	h := HeaderMatch{Name: headerName(m.GetName()), Invert: m.GetInvertMatch()}
	if m.GetName() == "" {
		f.addf("%s.name: must not be empty", at)
	}
	f.only(at, m, "name", "invert_match", "range_match", "exact_match", "present_match", "string_match")
	switch t := m.GetHeaderMatchSpecifier().(type) {
	case *routev3.HeaderMatcher_RangeMatch:
		// Envoy accepts an empty range and matches nothing with it; this client does
		// the same.
		h.Kind, h.Start, h.End = MatchRange, t.RangeMatch.GetStart(), t.RangeMatch.GetEnd()
	case *routev3.HeaderMatcher_ExactMatch:
		h.Kind, h.Exact = MatchExact, t.ExactMatch
	case *routev3.HeaderMatcher_PresentMatch:
		h.Kind = MatchPresent
		h.Invert = h.Invert != !t.PresentMatch
	case *routev3.HeaderMatcher_StringMatch:
		switch s := t.StringMatch.GetMatchPattern().(type) {
		case *matcherv3.StringMatcher_Exact:
			h.Kind, h.Exact, h.FoldCase = MatchExact, s.Exact, t.StringMatch.GetIgnoreCase()
		case *matcherv3.StringMatcher_Prefix:
			h.Kind, h.Exact = MatchPrefix, s.Prefix
			if s.Prefix == "" || t.StringMatch.GetIgnoreCase() {
				f.addf("%s.string_match.prefix: must not be empty, and ignore_case is not supported by this client", at)
			}
		case *matcherv3.StringMatcher_SafeRegex: // Envoy ignores ignore_case here, too
			var err error
			if h.Regex, err = regexp.Compile(`^(?:` + s.SafeRegex.GetRegex() + `)$`); err != nil {
				f.addf("%s.string_match.safe_regex: %w", at, err)
			}
			h.Kind = MatchRegex
		default:
			f.addf("%s.string_match: only exact, prefix and safe_regex are supported by this client", at)
		}
	default:
		// Envoy treats a matcher without a specifier as a test for presence.
		h.Kind = MatchPresent
	}
	return h
}

// headerName returns a header's name in the form that net/http uses.
func headerName(name string) string {
	if strings.HasPrefix(name, ":") {
		return strings.ToLower(name)
	}
	return textproto.CanonicalMIMEHeaderKey(name)
}

// Append selects what HeaderAdd does when the header already exists.
type Append int

// The append actions of Envoy's HeaderValueOption.
const (
	AppendOrAdd Append = iota // one more line
	AddIfAbsent
	Overwrite         // replace, or add
	OverwriteIfExists // replace, never add
)

// HeaderAdd sets one header.
type HeaderAdd struct {
	Name   string // canonical MIME form
	Value  Format
	Action Append
}

// HeaderOps changes headers: first the removals, then Add, in order.
type HeaderOps struct {
	Remove       []string // canonical MIME form
	RemovePrefix []string // lower case; removes every header with such a prefix
	Add          []HeaderAdd
}

// Empty reports whether there are no operations.
func (o HeaderOps) Empty() bool {
	return len(o.Remove) == 0 && len(o.RemovePrefix) == 0 && len(o.Add) == 0
}

// join returns the operations followed by those of another list.
func (o HeaderOps) join(p HeaderOps) HeaderOps {
	return HeaderOps{append(o.Remove, p.Remove...), append(o.RemovePrefix, p.RemovePrefix...), append(o.Add, p.Add...)}
}

// headerOptions are the header operations that tables, hosts and routes have alike.
type headerOptions interface {
	GetRequestHeadersToAdd() []*corev3.HeaderValueOption
	GetRequestHeadersToRemove() []string
	GetResponseHeadersToAdd() []*corev3.HeaderValueOption
	GetResponseHeadersToRemove() []string
}

func decodeHeaders(f *faults, at string, m headerOptions) (request, response HeaderOps) {
	return decodeHeaderOps(f, at+".request_headers", m.GetRequestHeadersToAdd(), m.GetRequestHeadersToRemove()),
		decodeHeaderOps(f, at+".response_headers", m.GetResponseHeadersToAdd(), m.GetResponseHeadersToRemove())
}

func decodeHeaderOps(f *faults, at string, add []*corev3.HeaderValueOption, remove []string) (o HeaderOps) {
	for i, name := range remove {
		if name == "" {
			f.addf("%s_to_remove[%d]: must not be empty", at, i)
		}
		o.Remove = append(o.Remove, headerName(name))
	}
	for i, a := range add {
		o.Add = append(o.Add, decodeHeaderAdd(f, fmt.Sprintf("%s_to_add[%d]", at, i), a))
	}
	return o
}

func decodeHeaderAdd(f *faults, at string, o *corev3.HeaderValueOption) HeaderAdd {
	f.only(at, o, "header", "append", "append_action", "keep_empty_value")
	h := o.GetHeader()
	if h.GetKey() == "" || strings.HasPrefix(h.GetKey(), ":") || strings.EqualFold(h.GetKey(), "host") {
		f.addf("%s.header.key: %q cannot be set", at, h.GetKey())
	}
	value := h.GetValue()
	if len(h.GetRawValue()) > 0 {
		value = string(h.GetRawValue())
	}
	if !validValue(value) {
		f.addf("%s.header.value: holds a control character", at)
	}
	format, err := parseFormat(value)
	if err != nil {
		f.addf("%s.header.value: %w", at, err)
	}
	a := HeaderAdd{Name: headerName(h.GetKey()), Value: format}
	switch o.GetAppendAction() {
	case corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD:
		if ap := o.GetAppend(); ap != nil && !ap.GetValue() {
			a.Action = Overwrite
		}
	case corev3.HeaderValueOption_ADD_IF_ABSENT:
		a.Action = AddIfAbsent
	case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD:
		a.Action = Overwrite
	case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS:
		a.Action = OverwriteIfExists
	default:
		f.addf("%s.append_action: unknown value %d", at, o.GetAppendAction())
	}
	return a
}

// validValue reports whether a header value may be sent.
func validValue(v string) bool {
	return !strings.ContainsFunc(v, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// Format is a header value that may contain Envoy's command operators.
type Format struct {
	parts []formatPart
}

type formatPart struct {
	text    string // literal, or the command's name
	command bool
}

// FormatContext holds the properties of a request that a Format may use.
type FormatContext struct {
	Cluster  string // %UPSTREAM_CLUSTER%
	Upstream string // %UPSTREAM_REMOTE_ADDRESS%
}

const (
	commandCluster  = "UPSTREAM_CLUSTER"
	commandUpstream = "UPSTREAM_REMOTE_ADDRESS"
)

// parseFormat parses "%NAME%" operators; "%%" is a percent sign.
func parseFormat(s string) (Format, error) {
	var f Format
	for s != "" {
		text, rest, found := strings.Cut(s, "%")
		if text != "" {
			f.parts = append(f.parts, formatPart{text: text})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "%")
		switch {
		case !closed:
			return f, errors.New("a % is not closed; write %% for a percent sign")
		case name == "":
			f.parts = append(f.parts, formatPart{text: "%"})
		case slices.Contains([]string{commandCluster, commandUpstream}, name):
			f.parts = append(f.parts, formatPart{text: name, command: true})
		default:
			return f, fmt.Errorf("%%%s%%: not supported by this client", name)
		}
		s = after
	}
	return f, nil
}

// Text renders the value. It allocates only when the value contains an operator.
func (f Format) Text(c FormatContext) string {
	switch len(f.parts) {
	case 0:
		return ""
	case 1:
		return f.parts[0].render(c)
	}
	var b strings.Builder
	for _, p := range f.parts {
		b.WriteString(p.render(c))
	}
	return b.String()
}

func (p formatPart) render(c FormatContext) string {
	switch {
	case !p.command:
		return p.text
	case p.text == commandCluster:
		return c.Cluster
	}
	return c.Upstream
}

// decodeMutations decodes the mutations of the header_mutation extensions.
func decodeMutations(f *faults, at string, ms []*mutationv3.HeaderMutation) (o HeaderOps) {
	for i, m := range ms {
		at := fmt.Sprintf("%s[%d]", at, i)
		if _, add := m.GetAction().(*mutationv3.HeaderMutation_Append); !add && len(o.Add) > 0 {
			// HeaderOps removes first, so another order cannot be represented.
			f.addf("%s: put removals before additions", at)
		}
		switch a := m.GetAction().(type) {
		case *mutationv3.HeaderMutation_Remove:
			if a.Remove == "" {
				f.addf("%s.remove: must not be empty", at)
			}
			o.Remove = append(o.Remove, headerName(a.Remove))
		case *mutationv3.HeaderMutation_RemoveOnMatch_:
			prefix := a.RemoveOnMatch.GetKeyMatcher().GetPrefix()
			if prefix == "" {
				f.addf("%s.remove_on_match.key_matcher: only a prefix is supported by this client", at)
			}
			o.RemovePrefix = append(o.RemovePrefix, strings.ToLower(prefix))
		case *mutationv3.HeaderMutation_Append:
			o.Add = append(o.Add, decodeHeaderAdd(f, at+".append", a.Append))
		default:
			f.addf("%s: only remove, remove_on_match and append are supported by this client", at)
		}
	}
	return o
}
