package client

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Envoy's default for a route without a timeout. It is too short for any generation, and
// therefore imitated, so that a plan without timeouts fails here too.
const defaultRouteTimeout = 15 * time.Second

// maxDirectBody is Envoy's limit for the body of a direct response, in bytes.
const maxDirectBody = 4096

// RouteTable is one RDS resource.
type RouteTable struct {
	Name       string
	Version    string
	Hosts      []*VirtualHost
	IgnorePort bool // drop the port from the host before the lookup
	Request    HeaderOps
	Response   HeaderOps
}

// VirtualHost is the routes of a set of host names.
type VirtualHost struct {
	Name    string
	Domains []string // lower case; "*", "*.suffix" or "prefix.*" are wildcards
	Routes  []*Route // the first that matches is taken
	// Models are the settings of a length estimator inside the proxy: one when
	// the host selects the model, several when the body has to name it, none
	// when nothing is to be estimated.
	Models   []resources.LengthMeta
	Metadata *corev3.Metadata
	Request  HeaderOps
	Response HeaderOps
}

// Route sends what matches to a cluster or answers it directly.
type Route struct {
	Name     string
	Path     string // with Exact: equal to it; otherwise a prefix
	Exact    bool
	FoldCase bool // of Path
	Headers  []HeaderMatch

	Cluster string // "" with Direct
	// HashHeader is the header whose value is the request's key in a cluster with HashKeys, in
	// canonical MIME form; "" for none.
	HashHeader string
	Direct     *DirectResponse // nil with Cluster

	Timeout     time.Duration // from the end of the request to the end of the response; 0 = none
	IdleTimeout time.Duration // replaces the listener's StreamIdle; < 0 = unset, 0 = none
	MaxDuration time.Duration // of the whole stream; 0 = none
	NotFound    int           // status when the cluster is unknown; 503 by default
	BufferLimit int64         // replaces the listener's BufferLimit; < 0 = unset
	Retry       *RetryPolicy  // nil = never

	Request  HeaderOps
	Response HeaderOps
	Metadata *corev3.Metadata
	// DisabledFilters are the names of filters that do not run on the route.
	DisabledFilters []string
}

// DirectResponse is an answer without an upstream.
type DirectResponse struct {
	Status int
	Body   []byte
}

func decodeRouteTable(name string, a *anypb.Any) (any, error) {
	f := new(faults)
	c := openNamed(f, "route_config", "name", name, a, &routev3.RouteConfiguration{}, (*routev3.RouteConfiguration).GetName)
	t := newRouteTable(f, "route_config", c)
	return t, f.err
}

func newRouteTable(f *faults, at string, c *routev3.RouteConfiguration) *RouteTable {
	f.only(at, c, "name", "virtual_hosts", "response_headers_to_add", "response_headers_to_remove", "request_headers_to_add",
		"request_headers_to_remove", "validate_clusters", "max_direct_response_body_size_bytes", "metadata", "internal_only_headers",
		"ignore_port_in_host_matching")
	limit := uint32(maxDirectBody)
	if l := c.GetMaxDirectResponseBodySizeBytes(); l != nil {
		limit = min(l.GetValue(), MaxMessage)
	}
	t := &RouteTable{Name: c.GetName(), IgnorePort: c.GetIgnorePortInHostMatching()}
	t.Request, t.Response = decodeHeaders(f, at, c)
	seen := make(map[string]string)
	for i, v := range c.GetVirtualHosts() {
		h := newVirtualHost(f, fmt.Sprintf("%s.virtual_hosts[%d]", at, i), v, limit)
		for _, d := range h.Domains {
			if other, twice := seen[d]; twice {
				f.addf("%s.virtual_hosts[%d].domains: %q is also in virtual host %s", at, i, d, other)
			}
			seen[d] = h.Name
		}
		t.Hosts = append(t.Hosts, h)
	}
	return t
}

func newVirtualHost(f *faults, at string, v *routev3.VirtualHost, bodyLimit uint32) *VirtualHost {
	f.only(at, v, "name", "domains", "routes", "metadata", "request_headers_to_add", "request_headers_to_remove",
		"response_headers_to_add", "response_headers_to_remove", "retry_policy", "typed_per_filter_config")
	h := &VirtualHost{Name: v.GetName(), Metadata: v.GetMetadata()}
	var err error
	if h.Models, err = resources.ReadLengthMeta(v.GetMetadata()); err != nil {
		f.addf("%s.metadata: %w", at, err)
	}
	if len(v.GetDomains()) == 0 {
		f.addf("%s.domains: must not be empty", at)
	}
	for _, d := range v.GetDomains() {
		if d == "" || strings.Contains(strings.Trim(d, "*"), "*") || d != "*" && strings.HasPrefix(d, "*") && strings.HasSuffix(d, "*") {
			f.addf("%s.domains: %q must be a name, or have one * at its start or end", at, d)
		}
		h.Domains = append(h.Domains, strings.ToLower(d))
	}
	h.Request, h.Response = decodeHeaders(f, at, v)
	checkPerFilter(f, at, v.GetTypedPerFilterConfig())
	retry := decodeRetry(f, at+".retry_policy", v.GetRetryPolicy())
	for i, r := range v.GetRoutes() {
		route := newRoute(f, fmt.Sprintf("%s.routes[%d]", at, i), r, bodyLimit)
		route.Retry = cmp.Or(route.Retry, retry)
		h.Routes = append(h.Routes, route)
	}
	return h
}

func newRoute(f *faults, at string, r *routev3.Route, bodyLimit uint32) *Route {
	f.only(at, r, "name", "match", "route", "direct_response", "metadata", "decorator", "tracing", "stat_prefix", "typed_per_filter_config",
		"request_headers_to_add", "request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove",
		"per_request_buffer_limit_bytes", "request_body_buffer_limit")
	out := &Route{Name: r.GetName(), Metadata: r.GetMetadata(), IdleTimeout: -1, BufferLimit: -1, NotFound: 503}
	if l := r.GetPerRequestBufferLimitBytes(); l != nil {
		out.BufferLimit = int64(l.GetValue())
	}
	if l := r.GetRequestBodyBufferLimit(); l != nil {
		out.BufferLimit = int64(min(l.GetValue(), 1<<40))
	}
	out.decodeMatch(f, at+".match", r.GetMatch())
	out.Request, out.Response = decodeHeaders(f, at, r)
	out.DisabledFilters = checkPerFilter(f, at, r.GetTypedPerFilterConfig())
	switch a := r.GetAction().(type) {
	case *routev3.Route_Route:
		out.decodeAction(f, at+".route", a.Route)
	case *routev3.Route_DirectResponse:
		out.decodeDirect(f, at+".direct_response", a.DirectResponse, bodyLimit)
	default:
		f.addf("%s: must have a route or a direct_response", at)
	}
	return out
}

func (r *Route) decodeMatch(f *faults, at string, m *routev3.RouteMatch) {
	f.only(at, m, "prefix", "path", "case_sensitive", "headers")
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		r.Path = p.Prefix
	case *routev3.RouteMatch_Path:
		r.Path, r.Exact = p.Path, true
	default:
		f.addf("%s: must have a prefix or a path", at)
	}
	r.FoldCase = m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue()
	for i, h := range m.GetHeaders() {
		r.Headers = append(r.Headers, decodeHeaderMatch(f, fmt.Sprintf("%s.headers[%d]", at, i), h))
	}
}

func (r *Route) decodeAction(f *faults, at string, a *routev3.RouteAction) {
	f.only(at, a, "cluster", "cluster_not_found_response_code", "timeout", "idle_timeout", "retry_policy", "max_stream_duration", "priority", "hash_policy")
	if a.GetCluster() == "" {
		f.addf("%s.cluster: must not be empty", at)
	}
	if a.GetPriority() != corev3.RoutingPriority_DEFAULT {
		f.addf("%s.priority: only DEFAULT is supported by this client", at)
	}
	r.Cluster = a.GetCluster()
	if a.GetClusterNotFoundResponseCode() == routev3.RouteAction_NOT_FOUND {
		r.NotFound = 404
	}
	r.Timeout = f.period(at+".timeout", a.GetTimeout(), defaultRouteTimeout)
	r.IdleTimeout = f.period(at+".idle_timeout", a.GetIdleTimeout(), -1)
	if d := a.GetMaxStreamDuration(); d != nil {
		f.only(at+".max_stream_duration", d, "max_stream_duration")
		r.MaxDuration = f.period(at+".max_stream_duration.max_stream_duration", d.GetMaxStreamDuration(), 0)
	}
	r.Retry = decodeRetry(f, at+".retry_policy", a.GetRetryPolicy())
	r.HashHeader = decodeHashPolicy(f, at+".hash_policy", a.GetHashPolicy())
}

// decodeHashPolicy returns the header that is the key, "" if there is none.
func decodeHashPolicy(f *faults, at string, p []*routev3.RouteAction_HashPolicy) string {
	if len(p) == 0 {
		return ""
	}
	name := p[0].GetHeader().GetHeaderName()
	if len(p) > 1 || name == "" || strings.HasPrefix(name, ":") || p[0].GetHeader().GetRegexRewrite() != nil {
		f.addf("%s: only one header without a rewrite is supported by this client", at)
	}
	return headerName(name)
}

func (r *Route) decodeDirect(f *faults, at string, d *routev3.DirectResponseAction, limit uint32) {
	f.only(at, d, "status", "body")
	if s := d.GetStatus(); s < 200 || s > 599 {
		f.addf("%s.status: %d is not in 200…599", at, s)
	}
	r.Direct = &DirectResponse{Status: int(d.GetStatus())}
	switch b := d.GetBody().GetSpecifier().(type) {
	case nil:
	case *corev3.DataSource_InlineString:
		r.Direct.Body = []byte(b.InlineString)
	case *corev3.DataSource_InlineBytes:
		r.Direct.Body = b.InlineBytes
	default:
		f.addf("%s.body: must be inline", at)
	}
	if len(r.Direct.Body) > int(limit) {
		f.addf("%s.body: %d bytes are more than max_direct_response_body_size_bytes, %d", at, len(r.Direct.Body), limit)
	}
}

// checkPerFilter returns the filters that are disabled, sorted. It accepts what configures
// ext_proc per route, which means nothing to this client, and refuses every other override.
func checkPerFilter(f *faults, at string, configs map[string]*anypb.Any) (disabled []string) {
	for name, a := range configs {
		switch a.GetTypeUrl() {
		case extProcPerRouteType:
			continue
		case filterConfigType:
			c := open(f, at+".typed_per_filter_config", a, &routev3.FilterConfig{})
			if c.GetDisabled() {
				disabled = append(disabled, name)
			}
			if t := c.GetConfig().GetTypeUrl(); t == "" || t == extProcPerRouteType || c.GetIsOptional() {
				continue
			}
		}
		f.addf("%s.typed_per_filter_config[%q]: only ext_proc overrides are supported by this client", at, name)
	}
	slices.Sort(disabled)
	return disabled
}
