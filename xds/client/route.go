package client

import (
	"errors"
	"fmt"
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

	Cluster string          // "" with Direct
	Direct  *DirectResponse // nil with Cluster

	Timeout     time.Duration // from the end of the request to the end of the response; 0 = none
	IdleTimeout time.Duration // replaces the listener's StreamIdle; < 0 = unset, 0 = none
	MaxDuration time.Duration // of the whole stream; 0 = none
	NotFound    int           // status when the cluster is unknown; 503 by default
	BufferLimit int64         // replaces the listener's BufferLimit; < 0 = unset
	Retry       *RetryPolicy  // nil = never

	Request  HeaderOps
	Response HeaderOps
	Metadata *corev3.Metadata
}

// DirectResponse is an answer without an upstream.
type DirectResponse struct {
	Status int
	Body   []byte
}

func decodeRouteTable(name string, a *anypb.Any) (any, error) {
	c, err := open("route_config", a, &routev3.RouteConfiguration{})
	if err != nil {
		return nil, err
	}
	if c.GetName() != name {
		return nil, fmt.Errorf("route_config.name: is %q, not the resource's", c.GetName())
	}
	return newRouteTable("route_config", c)
}

func newRouteTable(at string, c *routev3.RouteConfiguration) (*RouteTable, error) {
	err := only(at, c, "name", "virtual_hosts", "response_headers_to_add", "response_headers_to_remove", "request_headers_to_add",
		"request_headers_to_remove", "validate_clusters", "max_direct_response_body_size_bytes", "metadata", "internal_only_headers",
		"ignore_port_in_host_matching")
	if err != nil {
		return nil, err
	}
	limit := uint32(maxDirectBody)
	if l := c.GetMaxDirectResponseBodySizeBytes(); l != nil {
		limit = min(l.GetValue(), MaxMessage)
	}
	t := &RouteTable{Name: c.GetName(), IgnorePort: c.GetIgnorePortInHostMatching()}
	if t.Request, err = decodeHeaderOps(at+".request_headers", c.GetRequestHeadersToAdd(), c.GetRequestHeadersToRemove()); err != nil {
		return nil, err
	}
	if t.Response, err = decodeHeaderOps(at+".response_headers", c.GetResponseHeadersToAdd(), c.GetResponseHeadersToRemove()); err != nil {
		return nil, err
	}
	seen := make(map[string]string)
	for i, v := range c.GetVirtualHosts() {
		h, err := newVirtualHost(fmt.Sprintf("%s.virtual_hosts[%d]", at, i), v, limit)
		if err != nil {
			return nil, err
		}
		for _, d := range h.Domains {
			if other, twice := seen[d]; twice {
				return nil, fmt.Errorf("%s.virtual_hosts[%d].domains: %q is also in virtual host %s", at, i, d, other)
			}
			seen[d] = h.Name
		}
		t.Hosts = append(t.Hosts, h)
	}
	return t, nil
}

func newVirtualHost(at string, v *routev3.VirtualHost, bodyLimit uint32) (*VirtualHost, error) {
	err := only(at, v, "name", "domains", "routes", "metadata", "request_headers_to_add", "request_headers_to_remove",
		"response_headers_to_add", "response_headers_to_remove", "retry_policy", "typed_per_filter_config")
	if err != nil {
		return nil, err
	}
	h := &VirtualHost{Name: v.GetName(), Metadata: v.GetMetadata()}
	if h.Models, err = resources.ReadLengthMeta(v.GetMetadata()); err != nil {
		return nil, fmt.Errorf("%s.metadata: %w", at, err)
	}
	if len(v.GetDomains()) == 0 {
		return nil, errors.New(at + ".domains: must not be empty")
	}
	for _, d := range v.GetDomains() {
		if d == "" || strings.Contains(strings.Trim(d, "*"), "*") || d != "*" && strings.HasPrefix(d, "*") && strings.HasSuffix(d, "*") {
			return nil, fmt.Errorf("%s.domains: %q must be a name, or have one * at its start or end", at, d)
		}
		h.Domains = append(h.Domains, strings.ToLower(d))
	}
	if h.Request, err = decodeHeaderOps(at+".request_headers", v.GetRequestHeadersToAdd(), v.GetRequestHeadersToRemove()); err != nil {
		return nil, err
	}
	if h.Response, err = decodeHeaderOps(at+".response_headers", v.GetResponseHeadersToAdd(), v.GetResponseHeadersToRemove()); err != nil {
		return nil, err
	}
	if err := checkPerFilter(at, v.GetTypedPerFilterConfig()); err != nil {
		return nil, err
	}
	retry, err := decodeRetry(at+".retry_policy", v.GetRetryPolicy())
	if err != nil {
		return nil, err
	}
	for i, r := range v.GetRoutes() {
		route, err := newRoute(fmt.Sprintf("%s.routes[%d]", at, i), r, bodyLimit)
		if err != nil {
			return nil, err
		}
		if route.Retry == nil {
			route.Retry = retry
		}
		h.Routes = append(h.Routes, route)
	}
	return h, nil
}

func newRoute(at string, r *routev3.Route, bodyLimit uint32) (*Route, error) {
	err := only(at, r, "name", "match", "route", "direct_response", "metadata", "decorator", "tracing", "stat_prefix", "typed_per_filter_config",
		"request_headers_to_add", "request_headers_to_remove", "response_headers_to_add", "response_headers_to_remove",
		"per_request_buffer_limit_bytes", "request_body_buffer_limit")
	if err != nil {
		return nil, err
	}
	out := &Route{Name: r.GetName(), Metadata: r.GetMetadata(), IdleTimeout: -1, BufferLimit: -1, NotFound: 503}
	if l := r.GetPerRequestBufferLimitBytes(); l != nil {
		out.BufferLimit = int64(l.GetValue())
	}
	if l := r.GetRequestBodyBufferLimit(); l != nil {
		out.BufferLimit = int64(min(l.GetValue(), 1<<40))
	}
	if err := out.decodeMatch(at+".match", r.GetMatch()); err != nil {
		return nil, err
	}
	if out.Request, err = decodeHeaderOps(at+".request_headers", r.GetRequestHeadersToAdd(), r.GetRequestHeadersToRemove()); err != nil {
		return nil, err
	}
	if out.Response, err = decodeHeaderOps(at+".response_headers", r.GetResponseHeadersToAdd(), r.GetResponseHeadersToRemove()); err != nil {
		return nil, err
	}
	if err := checkPerFilter(at, r.GetTypedPerFilterConfig()); err != nil {
		return nil, err
	}
	switch a := r.GetAction().(type) {
	case *routev3.Route_Route:
		return out, out.decodeAction(at+".route", a.Route)
	case *routev3.Route_DirectResponse:
		return out, out.decodeDirect(at+".direct_response", a.DirectResponse, bodyLimit)
	}
	return nil, errors.New(at + ": must have a route or a direct_response")
}

func (r *Route) decodeMatch(at string, m *routev3.RouteMatch) error {
	if err := only(at, m, "prefix", "path", "case_sensitive", "headers"); err != nil {
		return err
	}
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		r.Path = p.Prefix
	case *routev3.RouteMatch_Path:
		r.Path, r.Exact = p.Path, true
	default:
		return errors.New(at + ": must have a prefix or a path")
	}
	r.FoldCase = m.GetCaseSensitive() != nil && !m.GetCaseSensitive().GetValue()
	for i, h := range m.GetHeaders() {
		hm, err := decodeHeaderMatch(fmt.Sprintf("%s.headers[%d]", at, i), h)
		if err != nil {
			return err
		}
		r.Headers = append(r.Headers, hm)
	}
	return nil
}

func (r *Route) decodeAction(at string, a *routev3.RouteAction) error {
	err := only(at, a, "cluster", "cluster_not_found_response_code", "timeout", "idle_timeout", "retry_policy", "max_stream_duration", "priority")
	if err != nil {
		return err
	}
	if a.GetCluster() == "" {
		return errors.New(at + ".cluster: must not be empty")
	}
	if a.GetPriority() != corev3.RoutingPriority_DEFAULT {
		return errors.New(at + ".priority: only DEFAULT is supported by this client")
	}
	r.Cluster = a.GetCluster()
	if a.GetClusterNotFoundResponseCode() == routev3.RouteAction_NOT_FOUND {
		r.NotFound = 404
	}
	if r.Timeout, err = period(at+".timeout", a.GetTimeout(), defaultRouteTimeout); err != nil {
		return err
	}
	if r.IdleTimeout, err = period(at+".idle_timeout", a.GetIdleTimeout(), -1); err != nil {
		return err
	}
	if d := a.GetMaxStreamDuration(); d != nil {
		if err := only(at+".max_stream_duration", d, "max_stream_duration"); err != nil {
			return err
		}
		if r.MaxDuration, err = period(at+".max_stream_duration.max_stream_duration", d.GetMaxStreamDuration(), 0); err != nil {
			return err
		}
	}
	r.Retry, err = decodeRetry(at+".retry_policy", a.GetRetryPolicy())
	return err
}

func (r *Route) decodeDirect(at string, d *routev3.DirectResponseAction, limit uint32) error {
	if err := only(at, d, "status", "body"); err != nil {
		return err
	}
	if s := d.GetStatus(); s < 200 || s > 599 {
		return fmt.Errorf("%s.status: %d is not in 200…599", at, s)
	}
	r.Direct = &DirectResponse{Status: int(d.GetStatus())}
	switch b := d.GetBody().GetSpecifier().(type) {
	case nil:
	case *corev3.DataSource_InlineString:
		r.Direct.Body = []byte(b.InlineString)
	case *corev3.DataSource_InlineBytes:
		r.Direct.Body = b.InlineBytes
	default:
		return errors.New(at + ".body: must be inline")
	}
	if len(r.Direct.Body) > int(limit) {
		return fmt.Errorf("%s.body: %d bytes are more than max_direct_response_body_size_bytes, %d", at, len(r.Direct.Body), limit)
	}
	return nil
}

// checkPerFilter accepts what switches ext_proc on or off per route, which
// means nothing to this client, and refuses every other override.
func checkPerFilter(at string, configs map[string]*anypb.Any) error {
	for name, a := range configs {
		if t := a.GetTypeUrl(); t == extProcPerRouteType {
			continue
		} else if t == filterConfigType {
			f, err := open(at+".typed_per_filter_config", a, &routev3.FilterConfig{})
			if err != nil {
				return err
			}
			if t := f.GetConfig().GetTypeUrl(); t == "" || t == extProcPerRouteType || f.GetIsOptional() {
				continue
			}
		}
		return fmt.Errorf("%s.typed_per_filter_config[%q]: only ext_proc overrides are supported by this client", at, name)
	}
	return nil
}
