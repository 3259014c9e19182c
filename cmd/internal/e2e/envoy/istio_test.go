package envoy

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/resources"
	"github.com/cascadeinfer/cascade/xds/resources/attach"
)

// tree is a YAML or JSON document.
type tree = map[string]any

func document(t *testing.T, name string) (out struct {
	Spec struct {
		PluginConfig  tree   `yaml:"pluginConfig"`
		FailStrategy  string `yaml:"failStrategy"`
		ConfigPatches []struct {
			ApplyTo string `yaml:"applyTo"`
			Patch   struct{ Value tree }
		} `yaml:"configPatches"`
	}
}) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "deploy", "istio", name))
	if err == nil {
		err = yaml.Unmarshal(text, &out)
	}
	testkit.NoError(t, err)
	return out
}

// patches returns the values of the EnvoyFilter's patches, by applyTo.
func patches(t *testing.T) map[string][]tree {
	t.Helper()
	out := map[string][]tree{}
	for _, p := range document(t, "envoyfilter.yaml").Spec.ConfigPatches {
		out[p.ApplyTo] = append(out[p.ApplyTo], p.Patch.Value)
	}
	return out
}

// asTree returns a message as a document.
func asTree(t *testing.T, m proto.Message) tree {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	testkit.NoError(t, err)
	return plain(t, text)
}

func plain(t *testing.T, text []byte) (out tree) {
	t.Helper()
	testkit.NoError(t, json.Unmarshal(text, &out))
	return out
}

// requireSame compares documents in their JSON form.
func requireSame(t *testing.T, what string, got tree, want proto.Message) {
	t.Helper()
	text, err := json.Marshal(got)
	testkit.NoError(t, err)
	m := want.ProtoReflect().New().Interface()
	if err := protojson.Unmarshal(text, m); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if !reflect.DeepEqual(asTree(t, m), asTree(t, want)) {
		t.Errorf("%s is not what \"cascade attach envoy --estimator-filter\" prints", what)
	}
}

// TestIstioPatches checks that the EnvoyFilter equals what attach renders.
func TestIstioPatches(t *testing.T) {
	h, err := attach.WholeListener(attach.Config{Control: []string{"cascade.cascade-system.svc.cluster.local:18000"}, EstimatorFilter: true})
	testkit.NoError(t, err)
	p := patches(t)
	requireSame(t, "the cluster", p["CLUSTER"][0], h.Clusters[0])
	for i, f := range h.Manager.HttpFilters {
		requireSame(t, f.Name, p["HTTP_FILTER"][i], f)
	}
	manager := p["NETWORK_FILTER"][0]["typed_config"].(tree)
	delete(manager, "@type")
	h.Manager.HttpFilters = nil
	requireSame(t, "the manager", manager, h.Manager)
}

// TestIstioPlugin applies the patches as Istio does, with the WasmPlugin in place of the slot, and sends requests through a
// real Envoy. TestIstioPatches and TestSameAnswers have the slot.
func TestIstioPlugin(t *testing.T) {
	testkit.Tool(t, "go") // builds the module
	r := startHarnessOf(t, view(), "gateway", func(control string) string { return gateway(t, control) })
	r.waitUntilServing()
	r.waitForEstimates(true)

	forged := []string{"x-cascade-tokens", "5", "x-gateway-model-name", "n/2"}
	r.expect("sized", r.post("m.test", bytes.NewReader(sized("m", 5000)), forged...), "m2", "1250", "m", 5000)
	r.expect("chunked, body not read", r.post("m.test", chunked{bytes.NewReader(completion("m", 400))}, forged...), "m2", "", "m", len(completion("m", 400)))
}

// gateway returns the bootstrap of an Envoy as Istio configures it.
func gateway(t *testing.T, control string) string {
	p := patches(t)
	cluster := p["CLUSTER"][0]
	setControl(t, cluster, control)

	var filters []any
	for _, f := range p["HTTP_FILTER"] {
		if f["name"] == resources.LengthFilter {
			f = plugin(t)
		}
		filters = append(filters, f)
	}
	filters = append(filters, tree{"name": "envoy.filters.http.router", "typed_config": tree{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}})
	manager := p["NETWORK_FILTER"][0]["typed_config"].(tree)
	manager["stat_prefix"], manager["http_filters"] = "gateway", filters
	listener := tree{
		"name":    "gateway",
		"address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}},
		"filter_chains": []any{tree{"filters": []any{tree{
			"name": "envoy.filters.network.http_connection_manager", "typed_config": manager,
		}}}},
	}
	for k, x := range p["LISTENER"][0] {
		listener[k] = x
	}
	text, err := json.Marshal(tree{
		"node":             tree{"id": "gateway", "cluster": "istio"},
		"admin":            tree{"address": tree{"socket_address": tree{"address": "127.0.0.1", "port_value": 0}}},
		"static_resources": tree{"clusters": []any{cluster}, "listeners": []any{listener}},
	})
	testkit.NoError(t, err)
	return patient(text)
}

// plugin returns the filter that Istio makes from the WasmPlugin: its configuration arrives as
// JSON.
func plugin(t *testing.T) tree {
	spec := document(t, "wasmplugin.yaml").Spec
	config, err := json.Marshal(spec.PluginConfig)
	testkit.NoError(t, err)
	if spec.FailStrategy != "FAIL_OPEN" {
		t.Errorf("the plugin's fail strategy is %q", spec.FailStrategy)
	}
	code, err := built()
	testkit.NoError(t, err)
	file := filepath.Join(t.TempDir(), "length.wasm")
	testkit.NoError(t, os.WriteFile(file, code, 0o600))
	return tree{"name": "istio-ingress.cascade-length", "typed_config": tree{
		"@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
		"config": tree{
			"root_id": "", "failure_policy": "FAIL_OPEN",
			"configuration": tree{"@type": "type.googleapis.com/google.protobuf.StringValue", "value": string(config)},
			"vm_config":     tree{"runtime": "envoy.wasm.runtime.v8", "code": tree{"local": tree{"filename": file}}},
		},
	}}
}
