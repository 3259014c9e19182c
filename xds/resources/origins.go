package resources

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/policies/length"
)

// AnyOrigin, as the only one of Settings.Origins, admits the pages of every origin.
const AnyOrigin = "*"

// The headers of CORS (the Fetch standard, section 3.3), by which a browser lets pages of another
// origin read answers.
const (
	originHeader   = "origin"
	corsPrefix     = "access-control-"
	allowOrigin    = corsPrefix + "allow-origin"
	allowCookies   = corsPrefix + "allow-credentials"
	wantedMethod   = corsPrefix + "request-method"
	echoed         = "%REQ(" + originHeader + ")%"
	echoedHeaders  = "%REQ(" + corsPrefix + "request-headers)%"
	refusedOrigin  = "refused/origin"
	preflightName  = "preflight"
	preflightHours = "7200" // the longest that Chromium keeps an answer, in seconds
)

// foreignRoute returns the route that refuses the requests of pages that are not listed. The
// others may then get their own origin back.
func foreignRoute(kind clientKind, origins []string) *routev3.Route {
	match := []*routev3.HeaderMatcher{presentMatch(originHeader)}
	for _, o := range origins {
		match = append(match, not(exactMatch(originHeader, o)))
	}
	return refusal(kind, "origin", 403, "PermissionDeniedError", "pages of this origin are not admitted", match)
}

// preflightRoute returns the route that answers whether a page may send a request. Every header
// is allowed: proxies remove those that only Cascade may set.
func preflightRoute(kind clientKind) *routev3.Route {
	r := refusal(kind, "", 204, "", "", []*routev3.HeaderMatcher{exactMatch(":method", "OPTIONS"), presentMatch(wantedMethod)})
	r.Name, r.GetDirectResponse().Body = preflightName, nil
	r.ResponseHeadersToAdd = []*corev3.HeaderValueOption{
		setHeader(corsPrefix+"allow-methods", strings.Join(publicapi.Methods(), ", ")),
		setHeader(corsPrefix+"allow-headers", echoedHeaders),
		setHeader(corsPrefix+"max-age", preflightHours),
	}
	return r
}

// admit adds to the answers of routes that pages of the origins may read them. Credentials are
// for listed origins only.
func admit(routes []*routev3.Route, origins []string) {
	add, remove := admission(origins)
	for _, r := range routes {
		if r.Name != refusedOrigin {
			r.ResponseHeadersToAdd = append(r.ResponseHeadersToAdd, add...)
			r.ResponseHeadersToRemove = append(r.ResponseHeadersToRemove, remove...)
		}
	}
}

func admission(origins []string) (add []*corev3.HeaderValueOption, remove []string) {
	exposed := setHeader(corsPrefix+"expose-headers", strings.Join([]string{"retry-after", "x-request-id", length.StageHeader, length.EpochHeader}, ", "))
	switch {
	case len(origins) == 0:
		return nil, nil
	case slices.Equal(origins, []string{AnyOrigin}):
		return []*corev3.HeaderValueOption{setHeader(allowOrigin, AnyOrigin), exposed}, []string{allowCookies}
	}
	vary := setHeader("vary", originHeader)
	vary.AppendAction = corev3.HeaderValueOption_APPEND_IF_EXISTS_OR_ADD
	return []*corev3.HeaderValueOption{setHeader(allowOrigin, echoed), setHeader(allowCookies, "true"), exposed, vary}, nil
}

// originsOf returns the origins that a host's routes admit.
func originsOf(routes []*routev3.Route) (origins []string) {
	if len(routes) == 0 {
		return nil
	}
	if r := routes[0]; r.Name == refusedOrigin {
		for _, m := range r.GetMatch().GetHeaders() {
			if o := m.GetStringMatch().GetExact(); o != "" {
				origins = append(origins, o)
			}
		}
		return origins
	}
	for _, o := range routes[0].ResponseHeadersToAdd {
		if o.GetHeader().GetKey() == allowOrigin {
			return []string{o.GetHeader().GetValue()}
		}
	}
	return nil
}

// proveAdmitted checks that pages of the origins, and of no others, may read a route's answers.
func proveAdmitted(r *routev3.Route, origins []string) error {
	add, remove := admission(origins)
	var have []*corev3.HeaderValueOption
	for _, o := range r.ResponseHeadersToAdd {
		if k := strings.ToLower(o.GetHeader().GetKey()); strings.HasPrefix(k, corsPrefix) || k == "vary" {
			have = append(have, o)
		}
	}
	if !slices.EqualFunc(have, add, func(a, b *corev3.HeaderValueOption) bool { return proto.Equal(a, b) }) || !slices.Equal(r.ResponseHeadersToRemove, remove) {
		return fmt.Errorf("must let pages of the origins %q, and of no others, read its answers", origins)
	}
	return nil
}

// validateOrigins checks Settings.Origins.
func validateOrigins(origins []string) error {
	for _, o := range origins {
		if o == AnyOrigin && len(origins) > 1 {
			return errors.New(`origins: "*" must stand alone: it admits all`)
		}
		if o == "" || strings.ContainsAny(o, "%, \r\n\x00") {
			return fmt.Errorf("origin %q: give a scheme and a host, such as https://app.example", o)
		}
	}
	return nil
}
