package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestAttackPublicAPI sends requests outside the public API to a real Envoy and to the proxy,
// both with the published listener and routes: they answer themselves, and a replica sees
// only what is public. The replica here would answer anything.
func TestAttackPublicAPI(t *testing.T) {
	f, addresses, _ := newPublicFleet(t)

	const body = "Content-Length: 2\r\n\r\n{}"
	type verdict struct{ envoy, proxy string }
	both := func(status string) verdict { return verdict{status, status} }
	for _, test := range []struct {
		want     verdict
		requests []string // the request line without its version, and what follows Host
	}{
		{both("served"), []string{
			"POST /v1/completions\r\n" + body, "POST /v1/chat/completions?x=/metrics\r\n" + body, "GET /v1/models",
			"GET /v1/models/", "GET /v1/models/org/name",
			"GET /v1/models/org%2Fname", "GET /v1/models/a%3Ab", "GET /health", "HEAD /health", "GET /ping",
			"POST /ping\r\n" + body, "POST /v1/responses/resp_1/cancel\r\n" + body,
			"GET http://evil.example/v1/models",
		}},
		{both("404"), []string{
			"GET /metrics", "GET /load", "GET /", "POST /pause\r\n" + body, "POST /v1/load_lora_adapter\r\n" + body,
			"GET /metrics?/v1/models", "GET /docs", "POST /abort_requests\r\n" + body,
			"GET //metrics", "GET //v1/models", "GET /v1//models", "GET /v1/models//x",
			"GET /v1/models/..;/metrics", "GET /v1/models/..;/..;/metrics", "GET /v1/models;x", "GET /V1/models",
			"GET /v1/models/../../metrics", "GET /v1/models/%2e%2e/%2e%2e/metrics",
			"GET /v1/models/..%2f..%2fmetrics", "GET /v1/models/%2e%2e%2f%2e%2e%2fmetrics", "GET /%6detrics",
			"GET /v1/models/a%253Fb", "GET /v1/models/a%3Bb", "GET /v1/models/%23",
			"POST /v1/completions/\r\n" + body, "GET http://evil.example/metrics", "PUT /metrics\r\n" + body,
			"CONNECT evil.example:443", "OPTIONS *",
		}},
		{both("405"), []string{
			"PUT /v1/completions\r\n" + body, "GET /v1/completions", "DELETE /v1/models",
			"PATCH /v1/chat/completions\r\n" + body, "HEAD /v1/models", "OPTIONS /tokenize",
			"POST /health\r\n" + body, "PUT /ping\r\n" + body, "GET /v1/responses/x/cancel", "TRACE /v1/models",
			"POST /v1/models/x\r\n" + body,
		}},
		{both("400"), []string{"GET /v1/models\r\n" + body, "HEAD /health\r\n" + body}},
		{verdict{"400", "405"}, []string{"post /v1/completions\r\n" + body}}, // Envoy's parser knows no such method
		{both("404"), []string{"GET /v1/models/..\\..\\metrics", "GET /v1/models/..%5c..%5cmetrics"}},
		{verdict{"served", "404"}, []string{"GET /v1/models%5c"}},
		// Envoy forwards a slash
		{verdict{"403", "served"}, []string{"GET /v1/models\r\nConnection: Upgrade\r\nUpgrade: websocket"}},
		// the proxy forwards it without the upgrade
	} {
		for _, request := range test.requests {
			line, rest, _ := strings.Cut(request, "\r\n")
			raw := line + " HTTP/1.1\r\nHost: m\r\nConnection: close\r\n" + rest
			if strings.Contains(rest, "Connection:") {
				raw = line + " HTTP/1.1\r\nHost: m\r\n" + rest
			}
			if !strings.Contains(raw, "\r\n\r\n") {
				raw = strings.TrimSuffix(raw, "\r\n") + "\r\n\r\n"
			}
			for name, want := range map[string]string{"envoy": test.want.envoy, "proxy": test.want.proxy} {
				before := f.hits()
				got, _, _ := strings.Cut(ask(t, addresses[name], raw), " ")
				reached := f.hits() - before
				if reached == 1 {
					got = "served"
				}
				if got != want || reached > 1 {
					t.Errorf("%s: %q is %s, want %s", name, line, got, want)
				}
			}
		}
	}
}

// newPublicFleet returns a fleet with the public API only, and the addresses of its proxy and of a real
// Envoy with the same listener and routes.
func newPublicFleet(t *testing.T, origins ...string) (*fleet, map[string]string, *envoytest.Process) {
	t.Helper()
	envoytest.Binary(t)
	f := newFleetWith(t, 2, nil, Config{})
	f.view.Settings.Origins = origins
	f.publish(f.view, nil)
	published := make(map[string][]proto.Message)
	set := testkit.Must(resources.Build(f.view))
	for _, typ := range []string{resources.ClusterType, resources.EndpointType, resources.ListenerType,
		resources.RouteType} {
		for _, r := range set.All(typ) {
			if !r.Unlisted {
				published[typ] = append(published[typ], testkit.Must((&anypb.Any{TypeUrl: r.Type,
					Value: r.Body}).UnmarshalNew()))
			}
		}
	}
	envoy := envoytest.Start(t, envoytest.Config{Concurrency: 1, Bootstrap: publishedBootstrap(t, published)})
	addresses := map[string]string{"envoy": envoy.Listener("cascade"), "proxy": strings.TrimPrefix(f.url, "http://")}
	return f, addresses, envoy
}

// TestAttackEnvoyHeaders sends headers by which a client could choose Envoy's timeouts, retries and
// attempts to a real Envoy and to the proxy: replicas see none of them.
func TestAttackEnvoyHeaders(t *testing.T) {
	f, addresses, _ := newPublicFleet(t)
	for name, address := range addresses {
		r := testkit.Must(http.NewRequest("POST", "http://"+address+"/v1/completions", bytes.NewReader(prompt("m",
			100))))
		for _, h := range []string{"Retry-On", "Max-Retries", "Upstream-Rq-Timeout-Ms", "Attempt-Count", "Internal",
			"Force-Trace", "Expected-Rq-Timeout-Ms"} {
			r.Header.Set("X-Envoy-"+h, "7")
		}
		resp := testkit.Must(f.client.Do(r))
		var s seen
		testkit.NoError(t, json.NewDecoder(resp.Body).Decode(&s))
		resp.Body.Close()
		for h, values := range s.Header {
			if h == "X-Envoy-External-Address" && name == "envoy" && !slices.Contains(values, "7") {
				continue // Envoy's own
			}
			if strings.HasPrefix(h, "X-Envoy-") && (h != "X-Envoy-Attempt-Count" || !slices.Equal(values,
				[]string{"1"})) {
				t.Errorf("%s: a replica sees %s: %q", name, h, values)
			}
		}
		if s.Header.Get("X-Envoy-Attempt-Count") != "1" {
			t.Errorf("%s: a replica sees %v", name, s.Header)
		}
	}
}

// hits returns how many requests all fronts have received.
func (f *fleet) hits() (n int64) {
	for _, r := range f.fronts {
		n += r.hits.Load()
	}
	return n
}

// publishedBootstrap returns an Envoy bootstrap with the published listener, routes, clusters
// and endpoints inline. The filters that come by ECDS run their defaults.
func publishedBootstrap(t *testing.T, published map[string][]proto.Message) string {
	t.Helper()
	text := func(m proto.Message) json.RawMessage { return testkit.Must(protojson.Marshal(m)) }
	endpoints := make(map[string]*endpointv3.ClusterLoadAssignment)
	for _, r := range published[resources.EndpointType] {
		a := r.(*endpointv3.ClusterLoadAssignment)
		endpoints[a.ClusterName] = a
	}
	clusters := []json.RawMessage{json.RawMessage(`{"name": "xds", "type": "STATIC"}`)}
	for _, r := range published[resources.ClusterType] {
		c := r.(*clusterv3.Cluster)
		if a := endpoints[c.GetEdsClusterConfig().GetServiceName()]; a != nil {
			c.ClusterDiscoveryType, c.EdsClusterConfig,
				c.LoadAssignment = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, nil, a
		}
		clusters = append(clusters, text(c))
	}
	l := published[resources.ListenerType][0].(*listenerv3.Listener)
	l.Address.GetSocketAddress().PortSpecifier = &corev3.SocketAddress_PortValue{}
	filter, hcm := l.FilterChains[0].Filters[0], new(hcmv3.HttpConnectionManager)
	testkit.NoError(t, filter.GetTypedConfig().UnmarshalTo(hcm))
	for _, r := range published[resources.RouteType] {
		if rc := r.(*routev3.RouteConfiguration); rc.Name == resources.RouteName {
			hcm.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: rc}
		}
	}
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: testkit.Must(anypb.New(hcm))}
	return string(testkit.Must(json.Marshal(map[string]any{
		"node":              map[string]string{"id": "e", "cluster": "c"},
		"admin":             json.RawMessage(`{"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}}`),
		"dynamic_resources": json.RawMessage(`{"ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}}`),
		"static_resources":  map[string]any{"listeners": []json.RawMessage{text(l)}, "clusters": clusters},
	})))
}
