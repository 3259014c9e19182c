package resources

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// grpcListener returns the listener behind xds:///<model>.cascade, or behind
// xds://cascade/<model> if Cascade is one of several authorities. It has only the
// router filter: gRPC rejects filters that it does not know.
func grpcListener(y naming, model string) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name: y.grpcListener(model),
		ApiListener: &listenerv3.ApiListener{ApiListener: Wrap(&hcmv3.HttpConnectionManager{
			StatPrefix: ListenerName,
			RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{
				ConfigSource:    ads(),
				RouteConfigName: y.grpcRoute(model),
			}},
			HttpFilters: []*hcmv3.HttpFilter{RouterFilter()},
		})},
	}
}

// grpcRouteConfig routes a gRPC client's calls. The client states their length, so there
// is no estimator and no content-length, and the target names the model.
func grpcRouteConfig(y naming, p policies.Plan, s Settings) *routev3.RouteConfiguration {
	routes := make([]*routev3.Route, 0, len(p.Stages)+1)
	for k, st := range p.Stages {
		r := stageRoute(y, p, k, ByTokens, s)
		r.Match.Headers = []*routev3.HeaderMatcher{rangeMatch(length.TokensHeader, int64(st.Low), int64(st.High))}
		r.Match.PathSpecifier = &routev3.RouteMatch_Prefix{}
		routes = append(routes, r)
	}
	rest := stageRoute(y, p, len(p.Stages)-1, ByNone, s)
	rest.Match.PathSpecifier = &routev3.RouteMatch_Prefix{}
	return &routev3.RouteConfiguration{
		Name: y.grpcRoute(p.Model),
		VirtualHosts: []*routev3.VirtualHost{{
			Name:    p.Model,
			Domains: []string{"*"},
			Routes:  append(routes, rest),
		}},
	}
}

// RouterFilter is the last filter of every chain.
func RouterFilter() *hcmv3.HttpFilter {
	return &hcmv3.HttpFilter{
		Name:       "envoy.filters.http.router",
		ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: Wrap(&routerv3.Router{})},
	}
}
