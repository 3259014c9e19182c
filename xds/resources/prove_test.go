package resources_test

import (
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// edit returns the set with one resource changed; a nil result of f drops it.
func edit[M proto.Message](t *testing.T, s resources.Set, typ, name string, f func(M) proto.Message) resources.Set {
	t.Helper()
	var all []*resources.Resource
	found := false
	for _, ty := range s.Types() {
		for _, r := range s.All(ty) {
			if ty == typ && r.Name == name {
				found = true
				m := f(message(t, r).(M))
				if m == nil {
					continue
				}
				again, err := resources.Encode(typ, name, m)
				if err != nil {
					t.Fatal(err)
				}
				again.Unlisted = r.Unlisted
				r = again
			}
			all = append(all, r)
		}
	}
	if !found {
		t.Fatalf("no %s %q", typ, name)
	}
	out, err := resources.NewSet(all...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The routes of fleet's only host: 3 by tokens, 1 by model, 3 by bytes, and the
// catch-all.
const (
	tokens0, tokens1, tokens2 = 0, 1, 2
	byModel                   = 3
	bytes0                    = 4
	catchAll                  = 7
)

func TestProveRefusesRoutes(t *testing.T) {
	type host = routev3.VirtualHost
	set := func(r *routev3.Route, key, value string) {
		r.Metadata.FilterMetadata[resources.MetadataKey].Fields[key] = structpb.NewStringValue(value)
	}
	headers := func(r *routev3.Route) []*routev3.HeaderMatcher { return r.Match.Headers }
	for name, c := range map[string]struct {
		f    func(*host)
		want string
	}{
		"first range from 1": {func(h *host) { headers(h.Routes[tokens0])[1].GetRangeMatch().Start = 1 }, `host "org/m": route 0 "org/m/tokens/s0": range [1, 1000) must start at 0`},
		"gap":                {func(h *host) { headers(h.Routes[tokens1])[1].GetRangeMatch().Start = 1001 }, "must start at 1000"},
		"overlap":            {func(h *host) { headers(h.Routes[tokens1])[1].GetRangeMatch().Start = 999 }, "must start at 1000"},
		"empty range":        {func(h *host) { headers(h.Routes[tokens1])[1].GetRangeMatch().End = 1000 }, "not be empty"},
		"backward range":     {func(h *host) { headers(h.Routes[tokens1])[1].GetRangeMatch().End = 7 }, "not be empty"},
		"metadata low":       {func(h *host) { set(h.Routes[tokens1], "low", "5") }, "metadata says"},
		"metadata missing":   {func(h *host) { h.Routes[tokens1].Metadata = nil }, "names no model"},
		"metadata epoch": {func(h *host) {
			set(h.Routes[byModel], "epoch", "8")
			h.Routes[byModel].ResponseHeadersToAdd[1].Header.Value = "8"
		}, "epoch 8 among routes of epoch 7"},
		"metadata epoch no number": {func(h *host) { set(h.Routes[byModel], "epoch", "x") }, "epoch"},
		"wrong model":              {func(h *host) { set(h.Routes[byModel], "model", "other") }, "metadata says"},
		"unknown rule":             {func(h *host) { set(h.Routes[byModel], "rule", "luck") }, `unknown rule "luck"`},
		"unknown cluster": {func(h *host) {
			h.Routes[tokens0].GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: "x"}
		}, `leads to cluster "x"`},
		"no action":                {func(h *host) { h.Routes[tokens0].Action = &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}} }, "must lead to a stage"},
		"default timeout":          {func(h *host) { h.Routes[tokens0].GetRoute().Timeout = nil }, "timeout must be 0s"},
		"timeout":                  {func(h *host) { h.Routes[catchAll].GetRoute().Timeout = durationpb.New(time.Hour) }, "timeout must be 0s"},
		"no idle timeout":          {func(h *host) { h.Routes[bytes0].GetRoute().IdleTimeout = nil }, "idle timeout"},
		"no tokens header":         {func(h *host) { headers(h.Routes[tokens0])[1].Name = "x-tokens" }, "x-cascade-tokens"},
		"no model header":          {func(h *host) { h.Routes[tokens0].Match.Headers = headers(h.Routes[tokens0])[1:] }, "x-gateway-model-name"},
		"inverted":                 {func(h *host) { headers(h.Routes[tokens0])[1].InvertMatch = true }, "and nothing else"},
		"path":                     {func(h *host) { h.Routes[tokens0].Match.PathSpecifier = &routev3.RouteMatch_Prefix{Prefix: "/v1"} }, "every path"},
		"no catch-all":             {func(h *host) { h.Routes = h.Routes[:catchAll] }, "catch-all is missing"},
		"catch-all too early":      {func(h *host) { h.Routes[bytes0], h.Routes[catchAll] = h.Routes[catchAll], h.Routes[bytes0] }, "follows the catch-all"},
		"catch-all not last stage": {func(h *host) { retarget(h.Routes[catchAll], 0) }, "only the last one, 2, is safe"},
		"catch-all with a header":  {func(h *host) { h.Routes[catchAll].Match.Headers = headers(h.Routes[bytes0]) }, "must match everything"},
		"unknown length not last":  {func(h *host) { retarget(h.Routes[byModel], 1) }, "only the last one, 2, is safe"},
		"unknown length before":    {func(h *host) { h.Routes[tokens2], h.Routes[byModel] = h.Routes[byModel], h.Routes[tokens2] }, "only the last one"},
		"no unknown length":        {func(h *host) { h.Routes = append(h.Routes[:byModel], h.Routes[byModel+1:]...) }, "unknown length"},
		"bytes gap":                {func(h *host) { headers(h.Routes[bytes0+1])[0].GetRangeMatch().Start++ }, "bytes [4001, 36000) must start at 4000"},
		"bytes other ratio":        {func(h *host) { headers(h.Routes[bytes0])[0].GetRangeMatch().End++ }, "must start at 0 and be [0, 4000)"},
		"bytes closed":             {func(h *host) { h.Routes = append(h.Routes[:bytes0+2], h.Routes[catchAll]) }, "last range of bytes must be open"},
		"stage header":             {func(h *host) { h.Routes[tokens0].ResponseHeadersToAdd[0].Header.Value = "s1" }, `x-cascade-stage says "s1", want "s0"`},
		"epoch header missing":     {func(h *host) { h.Routes[tokens0].ResponseHeadersToAdd = h.Routes[tokens0].ResponseHeadersToAdd[:1] }, "x-cascade-epoch is missing"},
		"refusal in a model's host": {func(h *host) {
			h.Routes[catchAll].Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 404}}
		}, "a host of one model must serve every request"},
		"no retry":               {func(h *host) { h.RetryPolicy = nil }, "retry policy"},
		"retry on 5xx":           {func(h *host) { h.RetryPolicy.RetryOn += ",5xx" }, "may repeat a request"},
		"no retry of refusals":   {func(h *host) { h.RetryPolicy.RetriableHeaders = nil }, "x-cascade-refused"},
		"retry same host":        {func(h *host) { h.RetryPolicy.RetryHostPredicate = nil }, "on another endpoint"},
		"retry same priority":    {func(h *host) { h.RetryPolicy.RetryPriority = nil }, "previous_priorities"},
		"no domain for the rest": {func(h *host) { h.Domains = h.Domains[:1] }, "without a stage"},
		"a domain twice":         {func(h *host) { h.Domains = append(h.Domains, "M.Example") }, `domain "m.example"`},
		"message constraint":     {func(h *host) { h.Name = "" }, "VirtualHost"},
	} {
		t.Run(name, func(t *testing.T) {
			s := edit(t, build(t, fleet()), resources.RouteType, resources.RouteName, func(rc *routev3.RouteConfiguration) proto.Message {
				c.f(rc.VirtualHosts[0])
				return rc
			})
			refused(t, s, `RouteConfiguration "cascade"|route table "cascade", `, c.want)
		})
	}
}

func TestProveRefusesGRPCRoutes(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(*routev3.VirtualHost)
		want string
	}{
		"closed end": {func(h *routev3.VirtualHost) {
			h.Routes[2].Match.Headers[0].GetRangeMatch().End = 1 << 20
			h.Routes[2].Metadata.FilterMetadata["cascade"].Fields["high"] = structpb.NewStringValue("1048576")
		}, "last range of tokens must be open"},
		"no ranges":    {func(h *routev3.VirtualHost) { h.Routes = h.Routes[3:] }, "only the last one"},
		"no catch-all": {func(h *routev3.VirtualHost) { h.Routes = h.Routes[:3] }, "catch-all is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			s := edit(t, build(t, fleet()), resources.RouteType, resources.GRPCRouteName("org/m"), func(rc *routev3.RouteConfiguration) proto.Message {
				c.f(rc.VirtualHosts[0])
				return rc
			})
			refused(t, s, `route table "cascade/org%2Fm/grpc", host "org/m"`, c.want)
		})
	}
}

// retarget changes a route consistently to another stage.
func retarget(r *routev3.Route, k int) {
	r.GetRoute().ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: resources.ClusterName("org/m", k)}
	r.Metadata.FilterMetadata[resources.MetadataKey].Fields["stage"] = structpb.NewNumberValue(float64(k))
	r.ResponseHeadersToAdd[0].Header.Value = resources.StageName(k)
}

// refused checks that the error names one of the places (a|b) and the reason.
func refused(t *testing.T, s resources.Set, places, want string) {
	t.Helper()
	err := prove(t, s)
	if err == nil {
		t.Fatal("proven")
	}
	place := false
	for p := range strings.SplitSeq(places, "|") {
		place = place || strings.Contains(err.Error(), p)
	}
	if !place || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %q\nwant %q at %q", err, want, places)
	}
}

func TestProveRefusesTwoModels(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(*routev3.RouteConfiguration)
		want string
	}{
		"estimator on some routes": {func(rc *routev3.RouteConfiguration) {
			any := rc.VirtualHosts[1]
			any.Routes[len(any.Routes)-1].TypedPerFilterConfig = nil
		}, "on every route that a stripped request can hit"},
		"estimated twice": {func(rc *routev3.RouteConfiguration) {
			any := rc.VirtualHosts[1]
			any.Routes[0].TypedPerFilterConfig = any.Routes[len(any.Routes)-1].TypedPerFilterConfig
		}, "must not be estimated again"},
		"bare enabling": {func(rc *routev3.RouteConfiguration) {
			packed, _ := anypb.New(&routev3.FilterConfig{})
			for _, h := range rc.VirtualHosts {
				for _, r := range h.Routes {
					if r.TypedPerFilterConfig != nil {
						r.TypedPerFilterConfig[resources.ExtProcFilter] = packed
					}
				}
			}
		}, "by a config with overrides"},
		"guessing the model": {func(rc *routev3.RouteConfiguration) {
			any, one := rc.VirtualHosts[1], rc.VirtualHosts[0]
			any.Routes[len(any.Routes)-1] = one.Routes[len(one.Routes)-1]
		}, "must not choose one of several models"},
		"refusal that looks well": {func(rc *routev3.RouteConfiguration) {
			any := rc.VirtualHosts[1]
			any.Routes[len(any.Routes)-1].GetDirectResponse().Status = 200
		}, "is not an error"},
		"another plan in another host": {func(rc *routev3.RouteConfiguration) {
			any := rc.VirtualHosts[1]
			for k, high := range []string{"1001", "9000"} {
				r := any.Routes[k]
				if k == 0 {
					r.Match.Headers[1].GetRangeMatch().End = 1001
					r.Metadata.FilterMetadata["cascade"].Fields["high"] = structpb.NewStringValue(high)
				} else {
					r.Match.Headers[1].GetRangeMatch().Start = 1001
					r.Metadata.FilterMetadata["cascade"].Fields["low"] = structpb.NewStringValue("1001")
				}
			}
		}, "other hosts of the table have another plan"},
		"a model without routes": {func(rc *routev3.RouteConfiguration) {
			any := rc.VirtualHosts[1]
			any.Routes = any.Routes[4:]
		}, `model "org/m" has no route`},
	} {
		t.Run(name, func(t *testing.T) {
			s := edit(t, build(t, twoModels()), resources.RouteType, resources.RouteName, func(rc *routev3.RouteConfiguration) proto.Message {
				c.f(rc)
				return rc
			})
			refused(t, s, `route table "cascade", host "`, c.want)
		})
	}
	s := edit(t, build(t, twoModels()), resources.ClusterType, resources.LengthCluster, func(*clusterv3.Cluster) proto.Message { return nil })
	refused(t, s, "host", `without the cluster "cascade/length"`)
}

func TestProveRefusesEndpoints(t *testing.T) {
	type cla = endpointv3.ClusterLoadAssignment
	for name, c := range map[string]struct {
		f    func(*cla)
		want string
	}{
		"no locality":         {func(a *cla) { a.Endpoints[0].Locality = nil }, "no region or zone"},
		"no zone":             {func(a *cla) { a.Endpoints[0].Locality.Zone = "" }, "no region or zone"},
		"a zone twice":        {func(a *cla) { a.Endpoints[1].Locality.Zone = a.Endpoints[0].Locality.Zone }, "twice in priority 0"},
		"no locality weight":  {func(a *cla) { a.Endpoints[0].LoadBalancingWeight = nil }, "no weight"},
		"weights too heavy":   {func(a *cla) { a.Endpoints[0].LoadBalancingWeight.Value = 1<<32 - 1 }, "more than 32 bits"},
		"endpoints too heavy": {func(a *cla) { twice(a).LoadBalancingWeight = wrapperspb.UInt32(1<<32 - 1) }, "more than 32 bits"},
		"no endpoint weight":  {func(a *cla) { a.Endpoints[0].LbEndpoints[0].LoadBalancingWeight = nil }, "no weight"},
		"weight 0":            {func(a *cla) { a.Endpoints[0].LbEndpoints[0].LoadBalancingWeight.Value = 0 }, "LoadBalancingWeight"},
		"an address twice":    {func(a *cla) { twice(a).GetEndpoint().Address = a.Endpoints[0].LbEndpoints[0].GetEndpoint().Address }, "twice"},
		"a gap":               {func(a *cla) { last(a).Priority = 9 }, "priority 3 is missing"},
		"empty zone":          {func(a *cla) { a.Endpoints[0].LbEndpoints = nil }, "is empty"},
		"no endpoint":         {func(a *cla) { a.Endpoints = nil }, "has no endpoint"},
		"a host name":         {func(a *cla) { socket(a).Address = "localhost" }, "IP address"},
		"no port":             {func(a *cla) { socket(a).PortSpecifier = &corev3.SocketAddress_PortValue{} }, "port"},
		"no id":               {func(a *cla) { a.Endpoints[0].LbEndpoints[0].Metadata = nil }, "names no id"},
		"next stage too far": {func(a *cla) {
			for _, l := range a.Endpoints {
				if l.Priority > 0 {
					l.Priority = 3 - l.Priority
				}
			}
		}, "must be priority 0 or 1"},
		"another name": {func(a *cla) { a.ClusterName = "x" }, `is stored as`},
	} {
		t.Run(name, func(t *testing.T) {
			s := edit(t, build(t, fleet()), resources.EndpointType, resources.EndpointName("org/m", 0), func(a *cla) proto.Message {
				c.f(a)
				return a
			})
			refused(t, s, `"cascade/org%2Fm/s0"`, c.want)
		})
	}
	s := edit(t, build(t, fleet()), resources.EndpointType, resources.EndpointName("org/m", 5), func(*cla) proto.Message { return nil })
	refused(t, s, `model "org/m"`, "are missing")
}

func socket(a *endpointv3.ClusterLoadAssignment) *corev3.SocketAddress {
	return a.Endpoints[0].LbEndpoints[0].GetEndpoint().Address.GetSocketAddress()
}

func last(a *endpointv3.ClusterLoadAssignment) *endpointv3.LocalityLbEndpoints {
	return a.Endpoints[len(a.Endpoints)-1]
}

// twice adds a copy of the first endpoint, at another port, and returns it.
func twice(a *endpointv3.ClusterLoadAssignment) *endpointv3.LbEndpoint {
	e := proto.Clone(a.Endpoints[0].LbEndpoints[0]).(*endpointv3.LbEndpoint)
	e.GetEndpoint().Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{PortValue: 1}
	a.Endpoints[0].LbEndpoints = append(a.Endpoints[0].LbEndpoints, e)
	return e
}

func TestProveRefusesClusters(t *testing.T) {
	type cluster = clusterv3.Cluster
	for name, c := range map[string]struct {
		f    func(*cluster)
		want string
	}{
		"default breakers":   {func(c *cluster) { c.CircuitBreakers = nil }, "1,025th"},
		"narrow breakers":    {func(c *cluster) { c.CircuitBreakers.Thresholds[0].MaxRetries = wrapperspb.UInt32(3) }, "want at least 10000"},
		"ejects a tenth":     {func(c *cluster) { c.OutlierDetection.MaxEjectionPercent = nil }, "want 100"},
		"never ejects":       {func(c *cluster) { c.OutlierDetection.EnforcingConsecutiveLocalOriginFailure.Value = 0 }, "must eject"},
		"only least request": {func(c *cluster) { c.LoadBalancingPolicy.Policies = nil }, "round robin"},
		"another service":    {func(c *cluster) { c.EdsClusterConfig.ServiceName = "x" }, `EDS name is "x"`},
		"not over ADS": {func(c *cluster) {
			c.EdsClusterConfig.EdsConfig.ConfigSourceSpecifier = &corev3.ConfigSource_Self{Self: &corev3.SelfConfigSource{}}
		}, "ADS"},
		"HTTP/1": {func(c *cluster) { c.TypedExtensionProtocolOptions = nil }, "HTTP/2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := edit(t, build(t, fleet()), resources.ClusterType, resources.ClusterName("org/m", 1), func(m *cluster) proto.Message {
				c.f(m)
				return m
			})
			refused(t, s, `cluster "cascade/org%2Fm/s1/rr"`, c.want)
		})
	}
	s := edit(t, build(t, fleet()), resources.ClusterType, resources.ClusterName("org/m", 6), func(*cluster) proto.Message { return nil })
	refused(t, s, `model "org/m"`, "is missing")
	s = edit(t, build(t, fleet()), resources.ClusterType, resources.ClusterName("org/m", 0), func(*cluster) proto.Message { return nil })
	refused(t, s, `model "org/m"`, "is missing")
}

func TestProveRefusesListeners(t *testing.T) {
	for name, c := range map[string]struct {
		f    func(*hcmv3.HttpConnectionManager)
		want string
	}{
		"nothing stripped": {func(h *hcmv3.HttpConnectionManager) { h.EarlyHeaderMutationExtensions = nil }, "removed before routing"},
		"other routes":     {func(h *hcmv3.HttpConnectionManager) { h.GetRds().RouteConfigName = "x" }, `"x" does not exist`},
		"no router":        {func(h *hcmv3.HttpConnectionManager) { h.HttpFilters = h.HttpFilters[:1] }, "must be the router"},
		"no slot":          {func(h *hcmv3.HttpConnectionManager) { h.HttpFilters = h.HttpFilters[1:] }, resources.LengthFilter},
		"slot without default": {func(h *hcmv3.HttpConnectionManager) {
			h.HttpFilters[0].GetConfigDiscovery().ApplyDefaultConfigWithoutWarming = false
		}, "with a default"},
		"callout always":  {func(h *hcmv3.HttpConnectionManager) { h.HttpFilters[1].Disabled = false }, "disabled"},
		"no idle timeout": {func(h *hcmv3.HttpConnectionManager) { h.StreamIdleTimeout = nil }, "idle timeout"},
		"not over ADS":    {func(h *hcmv3.HttpConnectionManager) { h.GetRds().ConfigSource = &corev3.ConfigSource{} }, "ConfigSource"},
	} {
		t.Run(name, func(t *testing.T) {
			s := edit(t, build(t, fleet()), resources.ListenerType, resources.ListenerName, func(l *listenerv3.Listener) proto.Message {
				hcm := new(hcmv3.HttpConnectionManager)
				f := l.FilterChains[0].Filters[0]
				if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
					t.Fatal(err)
				}
				c.f(hcm)
				packed, err := anypb.New(hcm)
				if err != nil {
					t.Fatal(err)
				}
				f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: packed}
				return l
			})
			refused(t, s, `listener "cascade"`, c.want)
		})
	}
}
