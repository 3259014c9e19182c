package resources

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/publicapi"
)

// publicRoutes returns the routes with which every virtual host of a proxy's table begins:
// they refuse what is not in the public API, before any filter reads a body. What follows
// them needs no path of its own.
//
// A path outside the API is answered 404, another method 405, and a GET or HEAD that
// announces a body 400; replicas refuse those that do not announce theirs. With origins, a
// request of a page of another one is answered 403, and a preflight 204.
func publicRoutes(kind clientKind, origins []string) []*routev3.Route {
	methods := make(map[string][]string) // that a path allows
	var paths []string                   // in the order of the API
	for _, e := range publicapi.Endpoints() {
		if methods[e.Path] == nil {
			paths = append(paths, e.Path)
		}
		methods[e.Path] = append(methods[e.Path], e.Method)
	}
	var routes []*routev3.Route
	if len(origins) > 0 && origins[0] != AnyOrigin {
		routes = append(routes, foreignRoute(kind, origins))
	}
	routes = append(routes, refusal(kind, "path", 404, "NotFoundError", "path not served", noneOf(paths)))
	if len(origins) > 0 {
		routes = append(routes, preflightRoute(kind))
	}
	groups := make(map[string][]string) // the methods of several paths
	for _, m := range methods {
		groups[strings.Join(m, ", ")] = m
	}
	for _, allow := range slices.Sorted(maps.Keys(groups)) {
		var match []*routev3.HeaderMatcher
		for _, method := range groups[allow] {
			match = append(match, not(exactMatch(":method", method)))
		}
		// It is a path of the API, and so one of this group if it is of no other.
		others := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return slices.Equal(methods[p], groups[allow]) })
		r := refusal(kind, "method", 405, "MethodNotAllowedError", "method not served; this path takes "+allow, append(match, noneOf(others)...))
		r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, setHeader("allow", allow))
		routes = append(routes, r)
	}
	for _, method := range publicapi.Bodiless() {
		match := []*routev3.HeaderMatcher{exactMatch(":method", method), rangeMatch(contentLength, 1, math.MaxInt64)}
		routes = append(routes, refusal(kind, "body", 400, "BadRequestError", method+" takes no body", match))
	}
	return routes
}

// noneOf matches requests for none of the paths. The header ":path" holds the path after its
// normalisation, and the query. Envoy compiles a regular expression per matcher and host, so
// only paths with a wildcard get one.
func noneOf(paths []string) (match []*routev3.HeaderMatcher) {
	for _, p := range paths {
		if pattern, needed := publicapi.Pattern(p); needed {
			match = append(match, not(pathMatch(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
				SafeRegex: &matcherv3.RegexMatcher{Regex: pattern},
			}})))
			continue
		}
		match = append(match, not(exactMatch(":path", p)),
			not(pathMatch(&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: p + "?"}})))
	}
	return match
}

func pathMatch(m *matcherv3.StringMatcher) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: ":path", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: m}}
}

func not(m *routev3.HeaderMatcher) *routev3.HeaderMatcher {
	m.InvertMatch = true
	return m
}

// refusal returns a route that answers what matches with an error in the format of the
// OpenAI API's. Of the length filters, which would read the request's body first, the one
// that Cascade configures is disabled on it.
func refusal(kind clientKind, name string, status uint32, errorType, message string, match []*routev3.HeaderMatcher) *routev3.Route {
	body, err := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": errorType, "param": nil, "code": status}})
	if err != nil {
		panic("internal error: " + err.Error())
	}
	r := &routev3.Route{
		Name:  "refused/" + name,
		Match: &routev3.RouteMatch{PathSpecifier: anyPath().PathSpecifier, Headers: match},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: status, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: string(body)}},
		}},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{setHeader("content-type", "application/json")},
	}
	if kind != splitEnvoy {
		r.TypedPerFilterConfig = map[string]*anypb.Any{LengthFilter: Wrap(&routev3.FilterConfig{Disabled: true})}
	}
	return r
}

// provePublic checks that the routes of a virtual host begin with those that refuse what is
// not in the public API, and returns the others, which admit the same origins.
func provePublic(kind clientKind, routes []*routev3.Route) ([]*routev3.Route, error) {
	origins := originsOf(routes)
	want := publicRoutes(kind, origins)
	admit(want, origins)
	for i, r := range want {
		if i >= len(routes) || !proto.Equal(routes[i], r) {
			return nil, fmt.Errorf("route %d: must be %q: no replica answers requests outside the public API, or for pages of other origins", i, r.Name)
		}
	}
	for _, r := range routes[len(want):] {
		if err := proveAdmitted(r, origins); err != nil {
			return nil, fmt.Errorf("route %q: %w", r.Name, err)
		}
	}
	return routes[len(want):], nil
}
