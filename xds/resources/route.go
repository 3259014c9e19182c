package resources

import (
	"math"
	"slices"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// Retries happen only before the first byte of a response, or on a response by which a
// replica asks for one. The replicas count the attempts: a request that breaks engines or
// front ends gets at most two of them, because the second one sends a 102 (Processing) when
// an engine gets the request, and no proxy retries after that. One priority
// is tried once: the dead replica of a one-replica stage must not use up all attempts,
// and the next longer stage can always serve.
const (
	// RetryOn are the conditions under which a request that has no answer yet is sent again.
	RetryOn           = "connect-failure,refused-stream,reset,retriable-headers"
	retries           = 3
	retryBackoff      = 5 * time.Millisecond
	retryMaxBackoff   = 100 * time.Millisecond
	retryHostAttempts = 10 // attempts to find a host that was not tried yet
)

// routeConfig returns the route table of a listener for the whole fleet: one virtual
// host per model with its host names, and one for all other hosts.
func routeConfig(y naming, name string, v View) *routev3.RouteConfiguration {
	rc := newTable(name)
	for _, m := range v.Models {
		domains := m.Hosts
		if len(v.Models) == 1 {
			domains = append(slices.Clone(domains), "*")
		}
		if len(domains) > 0 {
			rc.VirtualHosts = append(rc.VirtualHosts, modelHost(y, m, v, domains))
		}
	}
	if len(v.Models) > 1 {
		rc.VirtualHosts = append(rc.VirtualHosts, sharedHost(y, v))
	}
	return rc
}

// modelRouteConfig returns the route table of a listener for one model.
func modelRouteConfig(y naming, name string, m Model, v View) *routev3.RouteConfiguration {
	rc := newTable(name)
	rc.VirtualHosts = []*routev3.VirtualHost{modelHost(y, m, v, []string{"*"})}
	return rc
}

func newTable(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name: name,
		// Clients include the port of a listener that is not on 80 or 443.
		IgnorePortInHostMatching: true,
		// The clusters come by CDS before this table, or on demand.
		ValidateClusters:        wrapperspb.Bool(false),
		ResponseHeadersToRemove: loadMetrics,
	}
}

// modelHost routes the requests of one model: by the trusted headers if an estimator
// has set them, otherwise by the size of the body, otherwise to the last stage, which
// takes any length.
func modelHost(y naming, m Model, v View, domains []string) *routev3.VirtualHost {
	p, _ := v.PlanOf(m.Name)
	s := v.Settings
	last := len(p.Stages) - 1
	routes := append(publicRoutes(y.kind, s.Origins), headerRoutes(y, p, s)...)
	cuts := length.Estimator{BytesPerToken: m.BytesPerToken}
	for k, st := range p.Stages {
		low, high := cuts.CutBytes(st.Low), cuts.CutBytes(st.High)
		if low == high {
			continue // the range contains no whole byte
		}
		r := stageRoute(y, p, k, ByBytes, s)
		r.Match.Headers = []*routev3.HeaderMatcher{rangeMatch("content-length", low, high)}
		r.TypedPerFilterConfig = estimatorOverride(y, s, &extprocv3.ExtProcOverrides{})
		routes = append(routes, r)
	}
	rest := stageRoute(y, p, last, ByNone, s)
	rest.TypedPerFilterConfig = estimatorOverride(y, s, &extprocv3.ExtProcOverrides{})
	routes = append(routes, rest)
	admit(routes, s.Origins)
	return &routev3.VirtualHost{
		Name:        m.Name,
		Domains:     domains,
		Routes:      routes,
		RetryPolicy: retryPolicy(),
		Metadata:    lengthMetadata([]Model{m}, v.Endpoints),

		IncludeRequestAttemptCount: true,
	}
}

// sharedHost routes requests whose host name does not select one of several models.
// Only an estimator, which reads the model from the body, can route them; without it
// the response is an error, because guessing a model is wrong.
func sharedHost(y naming, v View) *routev3.VirtualHost {
	routes := publicRoutes(y.kind, v.Settings.Origins)
	for _, m := range v.Models {
		plan, _ := v.PlanOf(m.Name)
		routes = append(routes, headerRoutes(y, plan, v.Settings)...)
	}
	if y.kind == adsClient && v.Settings.Estimator != ContentLength {
		routes = append(routes, unestimatedRoutes(y, v.Settings)...)
	}
	routes = append(routes, &routev3.Route{
		Name:                   string(ByNone),
		Match:                  anyPath(),
		RequestBodyBufferLimit: v.Settings.bodyLimit(), // the service may have to read it
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
			Status: 404,
			Body:   &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: UnknownModel()}},
		}},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{setHeader("content-type", "application/json")},
		// Without the service's answer it is not known whether the model is served: clients try again
		// after a 503, and would not after the 404.
		TypedPerFilterConfig: estimatorOverride(y, v.Settings, &extprocv3.ExtProcOverrides{FailureModeAllow: wrapperspb.Bool(false)}),
	})
	admit(routes, v.Settings.Origins)
	return &routev3.VirtualHost{
		Name:        "*",
		Domains:     []string{"*"},
		Routes:      routes,
		RetryPolicy: retryPolicy(),
		Metadata:    lengthMetadata(v.Models, v.Endpoints),

		IncludeRequestAttemptCount: true,
	}
}

// unestimated names the routes of a shared host for requests with a body that no estimator has read yet, and the
// cluster that they lead to, which never exists.
const unestimated = "cascade/unestimated"

// unestimatedRoutes returns the routes of a shared host for requests with a body that no estimator has read yet. Envoy
// applies the body limit of a route only if that leads to a cluster: with the 404 alone, an estimator could hold no
// body that is larger than a connection's buffer. A request that is still without an estimate when it is routed gets a
// 404.
func unestimatedRoutes(y naming, s Settings) (routes []*routev3.Route) {
	for _, match := range unestimatedMatches() {
		routes = append(routes, &routev3.Route{
			Name:                   unestimated,
			Match:                  match,
			RequestBodyBufferLimit: s.bodyLimit(),
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{
				ClusterSpecifier:            &routev3.RouteAction_Cluster{Cluster: unestimated},
				ClusterNotFoundResponseCode: routev3.RouteAction_NOT_FOUND,
				Timeout:                     durationpb.New(0),
				IdleTimeout:                 durationpb.New(s.IdleTimeout),
			}},
			TypedPerFilterConfig: estimatorOverride(y, s, &extprocv3.ExtProcOverrides{FailureModeAllow: wrapperspb.Bool(false)}),
		})
	}
	return routes
}

// unestimatedMatches returns what has a body and no estimate: a body of a known size, or a POST without a size.
func unestimatedMatches() []*routev3.RouteMatch {
	absent := func(header string) *routev3.HeaderMatcher {
		m := presentMatch(header)
		m.InvertMatch = true
		return m
	}
	sized, chunked := anyPath(), anyPath()
	sized.Headers = []*routev3.HeaderMatcher{absent(length.TokensHeader), rangeMatch(contentLength, 1, math.MaxInt64)}
	chunked.Headers = []*routev3.HeaderMatcher{absent(length.TokensHeader), absent(contentLength), exactMatch(":method", "POST")}
	return []*routev3.RouteMatch{sized, chunked}
}

// headerRoutes returns the routes by the estimator's headers.
func headerRoutes(y naming, p policies.Plan, s Settings) []*routev3.Route {
	last := len(p.Stages) - 1
	routes := make([]*routev3.Route, 0, len(p.Stages)+1)
	for k, st := range p.Stages {
		r := stageRoute(y, p, k, ByTokens, s)
		r.Match.Headers = []*routev3.HeaderMatcher{
			exactMatch(length.ModelHeader, p.Model),
			rangeMatch(length.TokensHeader, int64(st.Low), int64(st.High)),
		}
		routes = append(routes, r)
	}
	unknown := stageRoute(y, p, last, ByModel, s)
	unknown.Match.Headers = []*routev3.HeaderMatcher{exactMatch(length.ModelHeader, p.Model)}
	return append(routes, unknown)
}

// routeName names a route to stage k of a model, for access logs.
func routeName(model string, rule Rule, k int) string {
	return model + "/" + string(rule) + "/" + StageName(k)
}

// stageRoute returns a route to stage k that matches everything; the caller narrows it.
func stageRoute(y naming, p policies.Plan, k int, rule Rule, s Settings) *routev3.Route {
	return &routev3.Route{
		Name:                   routeName(p.Model, rule, k),
		Match:                  anyPath(),
		RequestBodyBufferLimit: s.bodyLimit(),
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: y.cluster(p.Model, k)},
			// The default of 15 s would cut a token stream, with status 200.
			Timeout:     durationpb.New(0),
			IdleTimeout: durationpb.New(s.IdleTimeout),
		}},
		ResponseHeadersToAdd: []*corev3.HeaderValueOption{
			setHeader(length.StageHeader, StageName(k)),
			setHeader(length.EpochHeader, strconv.FormatUint(uint64(p.Epoch), 10)),
		},
	}
}

// estimatorOverride enables the ext_proc estimator on a route if the settings ask for
// it. The listener disables the filter, so that a request which already has an estimate
// is not sent again. The filters of a split listener belong to its owner and are not
// configured here.
func estimatorOverride(y naming, s Settings, overrides *extprocv3.ExtProcOverrides) map[string]*anypb.Any {
	if s.Estimator != ExtProc || y.kind == splitEnvoy {
		return nil
	}
	return map[string]*anypb.Any{ExtProcFilter: Wrap(&routev3.FilterConfig{
		Config: Wrap(&extprocv3.ExtProcPerRoute{
			Override: &extprocv3.ExtProcPerRoute_Overrides{Overrides: overrides},
		}),
	})}
}

func retryPolicy() *routev3.RetryPolicy {
	return &routev3.RetryPolicy{
		RetryOn:    RetryOn,
		NumRetries: wrapperspb.UInt32(retries),
		RetriableHeaders: []*routev3.HeaderMatcher{{
			Name: length.RefusedHeader, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
		}},
		RetryPriority: &routev3.RetryPolicy_RetryPriority{
			Name: "envoy.retry_priorities.previous_priorities",
			ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{
				TypedConfig: Wrap(&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 1}),
			},
		},
		RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{
				TypedConfig: Wrap(&previoushostsv3.PreviousHostsPredicate{}),
			},
		}},
		HostSelectionRetryMaxAttempts: retryHostAttempts,
		RetryBackOff: &routev3.RetryPolicy_RetryBackOff{
			BaseInterval: durationpb.New(retryBackoff),
			MaxInterval:  durationpb.New(retryMaxBackoff),
		},
	}
}

// UnknownModel returns the body of the 404 of a host that serves several models, in the
// format of the OpenAI API's errors.
func UnknownModel() string {
	e := publicapi.NewError(404, "model_not_found", "The request names no model that is served here. Set \"model\" to one that is, or use that model's own host name.")
	e.Param = "model"
	return e.Body()
}

func anyPath() *routev3.RouteMatch {
	return &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
}

func exactMatch(header, value string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
		StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: value}},
	}}
}

func rangeMatch(header string, start, end int64) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_RangeMatch{
		RangeMatch: &typev3.Int64Range{Start: start, End: end},
	}}
}

func presentMatch(header string) *routev3.HeaderMatcher {
	return &routev3.HeaderMatcher{Name: header, HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true}}
}

func setHeader(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, Value: value},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}
