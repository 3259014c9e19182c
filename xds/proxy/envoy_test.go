package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// ask sends raw bytes and returns the status, and the body of a 200.
func ask(t *testing.T, address, request string) string {
	t.Helper()
	c := testkit.Must(net.Dial("tcp", address))
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	testkit.NoError(t, err)
	if resp.StatusCode != 200 {
		return resp.Status
	}
	return string(body)
}

// TestLastAttemptLikeEnvoy sends requests that break every front end to a real Envoy and to the proxy,
// with the published retry policy: a second front end gets them, and no third one, because the second
// announces that it works on the request. Clients see nothing of that.
func TestLastAttemptLikeEnvoy(t *testing.T) {
	envoytest.Binary(t)
	f, table := newFleet(t, 4, nil), new(routev3.RouteConfiguration)
	testkit.NoError(t, testkit.Must(resources.Build(f.view)).Get(resources.RouteType,
		resources.RouteName).Decode(table))
	host := table.VirtualHosts[0]
	host = &routev3.VirtualHost{Name: "all", Domains: []string{"*"}, RetryPolicy: host.RetryPolicy,
		IncludeRequestAttemptCount: host.IncludeRequestAttemptCount,
		Routes: []*routev3.Route{{Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "fronts"}}}}}}
	inline := testkit.Must(protojson.Marshal(&routev3.RouteConfiguration{Name: "r",
		VirtualHosts: []*routev3.VirtualHost{host}}))
	var endpoints []string
	for _, front := range f.fronts {
		address, port, _ := strings.Cut(front.address, ":")
		endpoints = append(endpoints, fmt.Sprintf(`{"endpoint": {"address": {"socket_address": {"address": %q, "port_value": %s}}}}`, address, port))
	}
	envoy := envoytest.Start(t, envoytest.Config{Concurrency: 1, Bootstrap: `{
		"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
		"static_resources": {"clusters": [{"name": "fronts", "load_assignment": {"cluster_name": "fronts", "endpoints": [{"lb_endpoints": [` + strings.Join(endpoints, ",") + `]}]},
			"typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
				"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
					"explicit_http_config": {"http2_protocol_options": {}}}}}],
		"listeners": [{"name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
			"filter_chains": [{"filters": [{
			"name": "hcm", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
			"stat_prefix": "l", "http_filters": [{"name": "router",
				"typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
			"route_config": ` + string(inline) + `}}]}]}]}}`})
	for name, url := range map[string]string{"envoy": "http://" + envoy.Listener("l"), "proxy": f.url} {
		for path, status := range map[string]int{"/dies": 503, "/dies-refusing": 502} {
			before := f.hits()
			r := testkit.Must(http.NewRequest("POST", url+path, bytes.NewReader(prompt("m", 3000))))
			r = r.WithContext(httptrace.WithClientTrace(t.Context(),
				&httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
					t.Errorf("%s %s: the client gets %d", name, path, code)
					return nil
				}}))
			resp := testkit.Must(http.DefaultClient.Do(r))
			resp.Body.Close()
			if got := f.hits() - before; got != 2 || resp.StatusCode != status {
				t.Errorf("%s %s: %s, %d front ends got it; want %d and 2", name, path, resp.Status, got, status)
			}
		}
	}
}
