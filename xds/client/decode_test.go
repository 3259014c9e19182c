package client

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestRefusals checks that a field that would change where a request is routed is named
// in an error, not ignored.
func TestRefusals(t *testing.T) {
	route := func(edit func(*routev3.Route)) proto.Message {
		rt := routeTable("x", "c")
		edit(rt.VirtualHosts[0].Routes[0])
		return rt
	}
	match := func(h *routev3.HeaderMatcher) proto.Message {
		return route(func(r *routev3.Route) { r.Match.Headers = []*routev3.HeaderMatcher{h} })
	}
	action := func(edit func(*routev3.RouteAction)) proto.Message {
		return route(func(r *routev3.Route) { edit(r.GetRoute()) })
	}
	cluster := func(edit func(*clusterv3.Cluster)) proto.Message {
		c := edsCluster("x", "s")
		edit(c)
		return c
	}
	lds := func(edit func(*listenerv3.Listener)) proto.Message {
		l := listener(t, "x", "r")
		edit(l)
		return l
	}
	cla := func(edit func(*endpointv3.LbEndpoint)) proto.Message {
		a := loadAssignment("x", 80)
		edit(a.Endpoints[0].LbEndpoints[0])
		return a
	}
	edge := func(c *tlsv3.DownstreamTlsContext) *corev3.TransportSocket {
		return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: pack(t, c)}}
	}
	for _, c := range []struct {
		kind kind
		m    proto.Message
		want string // in the error
	}{
		{routes, match(&routev3.HeaderMatcher{Name: "h", HeaderMatchSpecifier: &routev3.HeaderMatcher_PrefixMatch{PrefixMatch: "a"}}), "headers[0].prefix_match"},
		{routes, match(&routev3.HeaderMatcher{Name: "h", HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{
			StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Contains{Contains: ","}}}}), "headers[0].string_match"},
		{routes, match(&routev3.HeaderMatcher{}), "headers[0].name"},
		{routes, match(&routev3.HeaderMatcher{Name: "h", TreatMissingHeaderAsEmpty: true}), "treat_missing_header_as_empty"},
		{routes, route(func(r *routev3.Route) {
			r.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "."}}
		}), "match.safe_regex"},
		{routes, route(func(r *routev3.Route) { r.Match = nil }), "must have a prefix"},
		{routes, route(func(r *routev3.Route) { r.Action = &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}} }), "redirect"},
		{routes, route(func(r *routev3.Route) {
			r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 99}}
		}), "status: 99"},
		{routes, route(func(r *routev3.Route) {
			r.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 404,
				Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: make([]byte, 5000)}}}}
		}), "max_direct_response_body_size_bytes"},
		{routes, route(func(r *routev3.Route) {
			r.TypedPerFilterConfig = map[string]*anypb.Any{"lua": pack(t, &routev3.FilterConfig{Config: pack(t, &headermutationv3.HeaderMutation{})})}
		}), `typed_per_filter_config["lua"]`},
		{routes, route(func(r *routev3.Route) {
			r.ResponseHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x", Value: "%START_TIME%"}}}
		}), "%START_TIME%"},
		{routes, route(func(r *routev3.Route) {
			r.ResponseHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x", Value: "a\r\nb"}}}
		}), "control character"},
		{routes, action(func(a *routev3.RouteAction) {
			a.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{}}
		}), "route.weighted_clusters"},
		{routes, action(func(a *routev3.RouteAction) { a.Timeout = durationpb.New(-1) }), "route.timeout"},
		{routes, action(func(a *routev3.RouteAction) { a.PrefixRewrite = "/x" }), "prefix_rewrite"},
		{routes, action(func(a *routev3.RouteAction) { a.RetryPolicy = &routev3.RetryPolicy{RetryOn: "connect-failure,5xx"} }), `retry_on: "5xx"`},
		{routes, action(func(a *routev3.RouteAction) {
			a.RetryPolicy = &routev3.RetryPolicy{RetryOn: "retriable-headers", RetriableHeaders: []*routev3.HeaderMatcher{{Name: "x", HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{}}}}
		}), "retriable_headers[0]"},
		{routes, &routev3.RouteConfiguration{Name: "other"}, "route_config.name"},
		{routes, &routev3.RouteConfiguration{Name: "x", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"*"}}, {Name: "b", Domains: []string{"*"}}}}, `"*" is also in virtual host a`},
		{routes, &routev3.RouteConfiguration{Name: "x", VirtualHosts: []*routev3.VirtualHost{{Name: "a", Domains: []string{"*.a.*"}}}}, "domains"},
		{clusters, cluster(func(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_MAGLEV }), "lb_policy: MAGLEV"},
		{clusters, cluster(func(c *clusterv3.Cluster) {
			c.LoadBalancingPolicy = &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: "nope"}}}}
		}), "none of nope"},
		{clusters, cluster(func(c *clusterv3.Cluster) {
			c.EdsClusterConfig.EdsConfig = &corev3.ConfigSource{ConfigSourceSpecifier: &corev3.ConfigSource_Path{Path: "/x"}}
		}), "must be ads"},
		{clusters, cluster(func(c *clusterv3.Cluster) { c.TransportSocket = &corev3.TransportSocket{Name: "tls"} }), "transport_socket"},
		{clusters, cluster(func(c *clusterv3.Cluster) { c.LbSubsetConfig = &clusterv3.Cluster_LbSubsetConfig{} }), "lb_subset_config"},
		{clusters, cluster(func(c *clusterv3.Cluster) {
			c.CommonLbConfig = &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 101}}
		}), "healthy_panic_threshold"},
		{assignments, cla(func(e *endpointv3.LbEndpoint) { e.LoadBalancingWeight = wrapperspb.UInt32(0) }), "load_balancing_weight"},
		{assignments, cla(func(e *endpointv3.LbEndpoint) { e.GetEndpoint().Address = nil }), "socket_address"},
		{listeners, lds(func(l *listenerv3.Listener) { l.FilterChains = nil }), "filter_chains"},
		{listeners, lds(func(l *listenerv3.Listener) { l.UseOriginalDst = wrapperspb.Bool(true) }), "use_original_dst"},
		{listeners, lds(func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocket = &corev3.TransportSocket{Name: "tls"}
		}), "transport_socket"},
		{listeners, lds(func(l *listenerv3.Listener) { l.FilterChains[0].TransportSocket = edge(&tlsv3.DownstreamTlsContext{}) }), "must name one secret"},
		{listeners, lds(func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocket = edge(&tlsv3.DownstreamTlsContext{RequireClientCertificate: wrapperspb.Bool(true)})
		}), "require_client_certificate"},
		{listeners, lds(func(l *listenerv3.Listener) {
			l.FilterChains[0].TransportSocket = edge(&tlsv3.DownstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{TlsCertificates: []*tlsv3.TlsCertificate{{}}}})
		}), "tls_certificates"},
	} {
		_, err := c.kind.spec().decode("x", pack(t, c.m))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got error %v, want one about %q", c.kind, err, c.want)
		}
	}
}

func TestDecodeDefaults(t *testing.T) {
	v, err := decodeCluster("x", pack(t, edsCluster("x", "")))
	if err != nil {
		t.Fatal(err)
	}
	if c := v.(*Cluster); c.EDSName != "x" || c.HTTP2 || c.ConnectTimeout != 5*time.Second || c.PanicThreshold != 50 || c.MaxRequests != 1024 {
		t.Errorf("cluster defaults are not Envoy's: %+v", c)
	}
	v, err = decodeRouteTable("x", pack(t, routeTable("x", "c")))
	if err != nil {
		t.Fatal(err)
	}
	if r := v.(*RouteTable).Hosts[0].Routes[0]; r.Timeout != 15*time.Second || r.IdleTimeout != -1 || r.NotFound != 503 || r.Retry != nil {
		t.Errorf("route defaults are not Envoy's: %+v", r)
	}
}

func TestFormat(t *testing.T) {
	f, err := parseFormat("100%% of %UPSTREAM_CLUSTER% at %UPSTREAM_REMOTE_ADDRESS%")
	if err != nil {
		t.Fatal(err)
	}
	if got := f.Text(FormatContext{Cluster: "c", Upstream: "u"}); got != "100% of c at u" {
		t.Errorf("got %q", got)
	}
	if _, err := parseFormat("50%"); err == nil {
		t.Error("an open % was accepted")
	}
}

func TestMutationOrder(t *testing.T) {
	add := &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Append{Append: &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: "a", Value: "b"}}}}
	remove := &mutationv3.HeaderMutation{Action: &mutationv3.HeaderMutation_Remove{Remove: "a"}}
	var ok, refused faults
	if decodeMutations(&ok, "m", []*mutationv3.HeaderMutation{remove, add}); ok.err != nil {
		t.Error(ok.err)
	}
	if decodeMutations(&refused, "m", []*mutationv3.HeaderMutation{add, remove}); refused.err == nil {
		t.Error("a removal after an addition was accepted and would be done before it")
	}
}

// FuzzDecode passes bytes to every decoder: none panics, and an accepted message is
// accepted again. The seeds are real resources.
func FuzzDecode(f *testing.F) {
	set, err := resources.Build(randomView(rand.New(rand.NewPCG(1, 2))))
	if err != nil {
		f.Fatal(err)
	}
	for k := range kinds {
		for i, r := range set.All(k.spec().url) {
			if i < 3 {
				f.Add(uint8(k), r.Name, r.Body)
			}
		}
	}
	f.Add(uint8(extensions), "x", pack(f, extension(f, "x", &headermutationv3.HeaderMutation{})).Value)
	f.Fuzz(func(t *testing.T, which uint8, name string, raw []byte) {
		k := kind(which) % kinds
		a := &anypb.Any{TypeUrl: k.spec().url, Value: raw}
		v, err := k.spec().decode(name, a)
		if err == nil {
			setVersion(v, "1") // panics on a typed nil
		}
		_, again := k.spec().decode(name, &anypb.Any{TypeUrl: k.spec().url, Value: bytes.Clone(raw)})
		if (again == nil) != (err == nil) {
			t.Fatalf("first %v, then %v", err, again)
		}
	})
}
