package envoy

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// TestEnvoyGateway sends requests through a real Envoy with the patches for Envoy Gateway. Its slot
// is empty, so that requests are routed by content-length; what fills it is tested elsewhere.
func TestEnvoyGateway(t *testing.T) {
	r := startHarnessOf(t, view(), "gateway", func(control string) string { return envoyGateway(t, control) })
	r.waitUntilServing()
	forged := []string{"x-cascade-tokens", "5", "x-gateway-model-name", "n/2"}
	for _, x := range []struct {
		size int
		at   string
	}{{399, "m0"}, {400, "m1"}, {3999, "m1"}, {4000, "m2"}, {2 << 20, "m2"}} {
		r.expect("sized", r.post("m.test", bytes.NewReader(sized("m", x.size)), forged...), x.at, "", "", x.size)
	}
}

// envoyGateway returns the bootstrap of an Envoy as Envoy Gateway configures it with the
// EnvoyPatchPolicy of deploy: its JSON patches applied to a listener of Envoy Gateway's form.
func envoyGateway(t *testing.T, control string) string {
	t.Helper()
	var policy struct {
		Spec struct {
			JSONPatches []struct {
				Type      string
				Operation struct {
					Op       string
					JSONPath string `yaml:"jsonPath"`
					Path     string
					Value    any
				}
			} `yaml:"jsonPatches"`
		}
	}
	text := testkit.Must(os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "envoy-gateway", "envoypatchpolicy.yaml")))
	testkit.NoError(t, yaml.Unmarshal(text, &policy))
	manager := tree{
		"@type":       "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "http-10080", "use_remote_address": true,
		"rds":          tree{"config_source": tree{"ads": tree{}, "resource_api_version": "V3"}, "route_config_name": "default/eg/http"},
		"http_filters": []any{tree{"name": "envoy.filters.http.router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	listener := tree{
		"name": "gateway", "address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
		"default_filter_chain": tree{"filters": []any{tree{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}}},
	}
	var clusters []any
	for _, p := range policy.Spec.JSONPatches {
		op := p.Operation
		switch field, ofManager := strings.TrimPrefix(op.Path, "/"), strings.HasSuffix(op.JSONPath, ".typed_config"); {
		case p.Type == resources.ClusterType:
			clusters = append(clusters, op.Value)
		case field == "http_filters/0":
			manager["http_filters"] = append([]any{op.Value}, manager["http_filters"].([]any)...)
		case op.Op == "replace" && manager[field] == nil:
			t.Fatalf("%s: nothing to replace", op.Path)
		case ofManager:
			manager[field] = op.Value
		default:
			listener[field] = op.Value
		}
	}
	setControl(t, clusters[0].(tree), control)
	return patient(testkit.Must(json.Marshal(tree{
		"node":             tree{"id": "gateway", "cluster": "eg"},
		"admin":            tree{"address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}}},
		"static_resources": tree{"clusters": clusters, "listeners": []any{listener}},
	})))
}

// setControl makes the cluster of the control plane lead to an address.
func setControl(t *testing.T, cluster tree, control string) {
	t.Helper()
	host, port, err := net.SplitHostPort(control)
	testkit.NoError(t, err)
	at := cluster["load_assignment"].(tree)["endpoints"].([]any)[0].(tree)["lb_endpoints"].([]any)[0].(tree)["endpoint"].(tree)["address"].(tree)["socket_address"].(tree)
	at["address"], at["port_value"] = host, testkit.Must(strconv.Atoi(port))
}

// patient raises the timeouts of fetches: while an Envoy on a busy host compiles the module, it
// reads nothing, and with the defaults it would drop its pending fetches, and requests with them.
func patient(bootstrap []byte) string {
	return strings.NewReplacer(`"initial_fetch_timeout":"2s"`, `"initial_fetch_timeout":"60s"`, `"timeout":"3s"`, `"timeout":"61s"`).Replace(string(bootstrap))
}
