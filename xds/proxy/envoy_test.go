package proxy

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// randomTable returns virtual hosts with random routes, each of which responds with its
// own name.
func randomTable(r *rand.Rand) *routev3.RouteConfiguration {
	rc := &routev3.RouteConfiguration{Name: "cascade", IgnorePortInHostMatching: true}
	edges := []int64{-5, 0, 5, 50, 100, 1000, math.MaxInt64}
	for i, domain := range []string{"a.b", "*.b", "*.a.b", "a.*", "a.b.*", "*"} {
		h := &routev3.VirtualHost{Name: domain, Domains: []string{domain}}
		for j := range 1 + r.IntN(6) {
			m := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: []string{"/", "/v1", "/V1/c"}[r.IntN(3)]}}
			if r.IntN(4) == 0 {
				m.PathSpecifier = &routev3.RouteMatch_Path{Path: "/v1/completions"}
			}
			if r.IntN(4) == 0 {
				m.CaseSensitive = wrapperspb.Bool(false)
			}
			for range r.IntN(3) {
				hm := &routev3.HeaderMatcher{Name: []string{"X-One", "x-two", ":method", ":path", ":authority", "host"}[r.IntN(6)], InvertMatch: r.IntN(4) == 0}
				switch r.IntN(5) {
				case 0:
					hm.HeaderMatchSpecifier = &routev3.HeaderMatcher_PresentMatch{PresentMatch: r.IntN(3) > 0}
				case 1:
					hm.Name = []string{"X-One", ":path"}[r.IntN(2)]
					m := &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: []string{"5", "a", "/v1", "/v1/c"}[r.IntN(4)]}}
					if r.IntN(2) == 0 {
						m.MatchPattern = &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: []string{"5|50", "[a-z]+", `/v1(?:\?.*)?`, "/v1/c", ".*"}[r.IntN(5)]}}
					}
					hm.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: m}
				case 2:
					hm.HeaderMatchSpecifier = &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{IgnoreCase: r.IntN(2) == 0,
						MatchPattern: &matcherv3.StringMatcher_Exact{Exact: []string{"50", "abc", "GET", "/v1", "a.b"}[r.IntN(5)]}}}
				default:
					hm.HeaderMatchSpecifier = &routev3.HeaderMatcher_RangeMatch{RangeMatch: &typev3.Int64Range{Start: edges[r.IntN(7)], End: edges[r.IntN(7)]}}
				}
				m.Headers = append(m.Headers, hm)
			}
			h.Routes = append(h.Routes, &routev3.Route{Match: m, Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
				Status: 200, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: fmt.Sprintf("%d/%d", i, j)}}}}})
		}
		rc.VirtualHosts = append(rc.VirtualHosts, h)
	}
	return rc
}

// randomRequest returns the bytes of a GET, with odd values and repeated headers among
// them.
func randomRequest(r *rand.Rand) string {
	values := []string{"0", "5", "49", "50", "99", "100", "999", "1000", "9223372036854775806", "9223372036854775807", "9223372036854775808",
		"99999999999999999999999", "", "007", "00100", "+5", "-0", "-1", "-5", "--1", "+-1", "abc", "ABC", "1e2", "1.5", "0x10", "1_000", " 50", "50 ", "\t50\t", "1,2", "1, 2", "5 0"}
	var b strings.Builder
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n",
		[]string{"/", "/v1", "/v1?x=1", "/V1/completions", "/v1/completions", "/v1/completions?a=/b", "/v1/c%20d"}[r.IntN(7)],
		[]string{"a.b", "A.B", "a.b:80", "x.b", "x.a.b", "a.c", "a.b.c:8080", "z", ".b", "a."}[r.IntN(10)])
	for range r.IntN(4) {
		fmt.Fprintf(&b, "%s:%s%s\r\n", []string{"x-one", "X-Two"}[r.IntN(2)], []string{"", " "}[r.IntN(2)], values[r.IntN(len(values))])
	}
	return b.String() + "\r\n"
}

// ask sends raw bytes and returns the status, and the body of a 200.
func ask(t *testing.T, address, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		return resp.Status
	}
	return string(body)
}

// TestRoutesLikeEnvoy sends the same odd requests through the same random tables to a
// real Envoy and to the proxy.
func TestRoutesLikeEnvoy(t *testing.T) {
	envoytest.Binary(t)
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 42))
		table := randomTable(r)
		inline, err := protojson.Marshal(table)
		if err != nil {
			t.Fatal(err)
		}
		envoy := envoytest.Start(t, envoytest.Config{Concurrency: 1, Bootstrap: `{
			"admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
			"static_resources": {"listeners": [{"name": "l", "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}, "filter_chains": [{"filters": [{
				"name": "hcm", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
				"stat_prefix": "l", "http_filters": [{"name": "router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
				"route_config": ` + string(inline) + `}}]}]}]}}`})
		address := envoy.Listener("l")
		f := newFleet(t, 2, func(all map[string][]types.Resource) { all[resources.RouteType] = []types.Resource{table} })
		ours := strings.TrimPrefix(f.url, "http://")
		matched := 0
		for range 400 {
			request := randomRequest(r)
			want, got := ask(t, address, request), ask(t, ours, request)
			if strings.Contains(want, "/") {
				matched++
			}
			if got != want {
				t.Errorf("seed %d, %q: Envoy says %s, the proxy %s", seed, request, want, got)
			}
		}
		envoy.Stop()
		if matched < 50 {
			t.Errorf("seed %d: only %d of 400 requests matched a route; the test says little", seed, matched)
		}
	}
}
