package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/envoytest"
)

// attached runs "cascade attach" and returns what it prints.
func attached(t *testing.T, args ...string) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	if code := run(t.Context(), append([]string{"attach"}, args...), &out, &errs); code != 0 {
		t.Fatalf("attach %v: %s", args, errs.String())
	}
	return out.Bytes()
}

// inCluster is the address of the control plane in the objects for Kubernetes under deploy.
const inCluster = "cascade.cascade-system.svc.cluster.local:18000"

// TestAttachDeploy checks that the files under deploy are what the command prints.
func TestAttachDeploy(t *testing.T) {
	dir := filepath.Join("..", "..", "deploy")
	fleet := filepath.Join(dir, "fleet.yaml")
	for file, args := range map[string][]string{
		"envoy/listener.yaml":                 {"envoy", "--estimator-filter"},
		"envoy/internal-listener.yaml":        {"envoy", "--internal-listener", "--fallback", "my-cluster"},
		"grpc/bootstrap.json":                 {"grpc", "--node-id", "client-0"},
		"envoy-gateway/envoypatchpolicy.yaml": {"eg", "--gateway", "default/eg", "--estimator-filter", "--control", inCluster},
		"istio/envoyfilter.yaml":              {"istio", "--estimator-filter", "--control", inCluster},
		"gateway-api/httproute.yaml":          {"httproute", "--gateway", "default/eg", "--cuts", "4096,16384", "--service", "llama"},
	} {
		got := attached(t, append(args, "-c", fleet)...)
		want, err := os.ReadFile(filepath.Join(dir, file))
		testkit.NoError(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("deploy/%s is not what \"cascade attach %s -c deploy/fleet.yaml\" prints; write it anew", file, strings.Join(args, " "))
		}
	}
}

// tree is a YAML or JSON document.
type tree = map[string]any

// TestAttachedConfigLoads pastes the output into a configuration of another owner, as its comments
// say, and a real Envoy validates the result.
func TestAttachedConfigLoads(t *testing.T) {
	filters := func(more ...any) []any {
		return append(more, tree{"name": "envoy.filters.http.router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}})
	}
	for name, args := range map[string][]string{
		"listener":          {"--estimator-filter", "--model", "org/m"},
		"internal listener": {"--internal-listener", "--listener", "llm", "--load-reports"},
		"fallback":          {"--internal-listener", "--fallback", "theirs", "--control", "cascade.internal:18000", "--control", "10.0.0.6:18000"},
	} {
		t.Run(name, func(t *testing.T) {
			var printed tree
			testkit.NoError(t, yaml.Unmarshal(attached(t, append([]string{"envoy"}, args...)...), &printed))
			var same tree
			testkit.NoError(t, json.Unmarshal(attached(t, append([]string{"envoy", "--json"}, args...)...), &same))
			for key := range printed {
				if same[key] == nil || len(same) != len(printed) {
					t.Errorf("--json has other parts: %v", same)
				}
			}
			theirs := tree{"name": "theirs", "type": "STATIC"}
			hcm := tree{"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "theirs"}
			var listeners []any
			if m, ok := printed["http_connection_manager"].(tree); ok {
				for k, v := range m {
					hcm[k] = v
				}
				hcm["http_filters"] = filters(m["http_filters"].([]any)...)
			} else {
				listeners = append(listeners, printed["listener"])
				hcm["http_filters"] = filters()
				hcm["route_config"] = tree{"virtual_hosts": []any{tree{"name": "llm", "domains": []any{"llm.example"}, "routes": []any{printed["route"]}}}}
			}
			listeners = append(listeners, tree{
				"name": "theirs", "address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
				"filter_chains": []any{tree{"filters": []any{tree{"name": "hcm", "typed_config": hcm}}}},
			})
			boot := tree{
				"node":             tree{"id": "theirs", "cluster": "theirs"},
				"static_resources": tree{"clusters": append(printed["clusters"].([]any), theirs), "listeners": listeners},
			}
			if b, ok := printed["bootstrap"].(tree); ok {
				for k, v := range b {
					boot[k] = v
				}
			}
			text, err := json.Marshal(boot)
			testkit.NoError(t, err)
			envoytest.Validate(t, string(text))
		})
	}
}

// TestAttachedPatchesLoad applies the patches of the EnvoyPatchPolicy to a listener as Envoy Gateway
// makes it, and a real Envoy validates the result.
func TestAttachedPatchesLoad(t *testing.T) {
	var policy struct {
		Spec struct {
			TargetRef   tree `json:"targetRef"`
			JSONPatches []struct {
				Type, Name string
				Operation  struct {
					Op, JSONPath, Path string
					Value              any
				}
			} `json:"jsonPatches"`
		}
	}
	testkit.NoError(t, json.Unmarshal(attached(t, "eg", "--gateway", "infra/eg", "--section", "llm", "--estimator-filter", "--control", inCluster, "--json"), &policy))
	hcm := tree{
		"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "http-10080",
		"rds":          tree{"config_source": tree{"ads": tree{}, "resource_api_version": "V3"}, "route_config_name": "infra/eg/llm"},
		"http_filters": []any{tree{"name": "envoy.filters.http.router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	listener := tree{
		"name": "infra/eg/llm", "address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
		"default_filter_chain": tree{"filters": []any{tree{"name": "hcm", "typed_config": hcm}}},
	}
	var clusters []any
	for _, p := range policy.Spec.JSONPatches {
		path, found := strings.TrimPrefix(p.Operation.Path, "/"), p.Operation.JSONPath == "..filters[?(@.name=='envoy.filters.network.http_connection_manager')].typed_config"
		switch {
		case p.Type == "type.googleapis.com/envoy.config.cluster.v3.Cluster":
			clusters = append(clusters, p.Operation.Value)
		case p.Name != "infra/eg/llm":
			t.Errorf("a patch of %s %q", p.Type, p.Name)
		case path == "http_filters/0":
			hcm["http_filters"] = append([]any{p.Operation.Value}, hcm["http_filters"].([]any)...)
		case found && (p.Operation.Op == "add" || hcm[path] != nil):
			hcm[path] = p.Operation.Value
		case !found && p.Operation.Op == "add":
			listener[strings.TrimPrefix(p.Operation.Path, "/")] = p.Operation.Value
		default:
			t.Errorf("a patch that does not apply: %+v", p)
		}
	}
	if first := hcm["http_filters"].([]any)[0].(tree)["name"]; first != "cascade.length.v1" || len(hcm["http_filters"].([]any)) != 3 {
		t.Errorf("filters %v", hcm["http_filters"])
	}
	text, err := json.Marshal(tree{
		"node":             tree{"id": "eg", "cluster": "eg"},
		"static_resources": tree{"clusters": clusters, "listeners": []any{listener}},
	})
	testkit.NoError(t, err)
	envoytest.Validate(t, string(text))
}
