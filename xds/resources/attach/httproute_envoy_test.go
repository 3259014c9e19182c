package attach_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/envoytest"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// TestHTTPRouteOnEnvoy gives the expressions of an HTTPRoute to a real Envoy with its default limits,
// as gateways do that are built on it, and checks the stages of lengths around the boundaries.
func TestHTTPRouteOnEnvoy(t *testing.T) {
	envoytest.Binary(t)
	cuts := []policies.Tokens{1, 999, 4096, 13337, 100_000, 1 << 30, 1<<62 + 12345}
	o := testkit.Must(attach.HTTPRoute(attach.RouteConfig{Name: "r", Gateway: "g", Service: "llm", Port: 80, Cuts: cuts}))
	var route struct {
		Spec struct {
			Rules []struct {
				Matches []struct {
					Headers []struct{ Name, Value string }
				}
				BackendRefs []struct{ Name string }
			}
		}
	}
	testkit.NoError(t, json.Unmarshal(testkit.Must(json.Marshal(o)), &route))
	var routes []any
	add := func(service string, match map[string]any) {
		match["prefix"] = "/"
		routes = append(routes, map[string]any{"match": match, "direct_response": map[string]any{"status": 200, "body": map[string]any{"inline_string": service}}})
	}
	for _, r := range route.Spec.Rules {
		for _, m := range r.Matches {
			h := m.Headers[0]
			add(r.BackendRefs[0].Name, map[string]any{"headers": []any{map[string]any{"name": h.Name, "string_match": map[string]any{"safe_regex": map[string]any{"regex": h.Value}}}}})
		}
		if len(r.Matches) == 0 {
			add(r.BackendRefs[0].Name, map[string]any{})
		}
	}
	manager := map[string]any{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "g", "http_filters": []any{map[string]any{"name": "router", "typed_config": map[string]any{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
		"route_config": map[string]any{"virtual_hosts": []any{map[string]any{"name": "g", "domains": []any{"*"}, "routes": routes}}},
	}
	loopback := map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}
	e := envoytest.Start(t, envoytest.Config{Bootstrap: string(testkit.Must(json.Marshal(map[string]any{
		"admin": map[string]any{"address": loopback},
		"static_resources": map[string]any{"listeners": []any{map[string]any{"name": "g", "address": loopback, "filter_chains": []any{map[string]any{
			"filters": []any{map[string]any{"name": "hcm", "typed_config": manager}},
		}}}}},
	})))})
	client := http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(value string) string {
		req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+e.Listener("g"), nil))
		if value != "" {
			req.Header.Set("x-cascade-tokens", value)
		}
		resp := testkit.Must(client.Do(req))
		defer resp.Body.Close()
		return string(testkit.Must(io.ReadAll(resp.Body)))
	}
	for k, cut := range cuts {
		for value, want := range map[string]int{fmt.Sprint(int64(cut) - 1): k, fmt.Sprint(int64(cut)): k + 1, "00" + fmt.Sprint(int64(cut)): k + 1} {
			if got := ask(value); got != fmt.Sprint("llm-s", want) {
				t.Errorf("%s tokens are at %s, want stage %d", value, got, want)
			}
		}
	}
	for _, value := range []string{"", "abc", "-1", "5,9", strings.Repeat("9", 30)} {
		if got, want := ask(value), fmt.Sprint("llm-s", len(cuts)); got != want {
			t.Errorf("%q is at %s, want the last stage", value, got)
		}
	}
}
