package attach

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/cascadeinfer/cascade/xds/resources"
)

// Object is a Kubernetes object. It marshals to JSON.
type Object struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Metadata   ObjectMeta `json:"metadata"`
	Spec       any        `json:"spec"`
}

// ObjectMeta names an Object.
type ObjectMeta struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// bufferLimitField of a listener bounds what waits for clients that do not read. Cascade's routes have
// the limit of request bodies.
const bufferLimitField = "per_connection_buffer_limit_bytes"

// PatchConfig is the input of EnvoyPatchPolicy.
type PatchConfig struct {
	Config
	// Name is the name of the object. Namespace is its namespace and that of Gateway.
	Name, Namespace string
	// Gateway and Section name the listener whose routes are handed over.
	Gateway, Section string
}

// The parts of an EnvoyPatchPolicy that are used here.
type (
	patchPolicySpec struct {
		TargetRef   targetRef   `json:"targetRef"`
		Type        string      `json:"type"`
		JSONPatches []jsonPatch `json:"jsonPatches"`
	}
	targetRef struct {
		Group string `json:"group"`
		Kind  string `json:"kind"`
		Name  string `json:"name"`
	}
	jsonPatch struct {
		Type      string         `json:"type"`
		Name      string         `json:"name"`
		Operation patchOperation `json:"operation"`
	}
	patchOperation struct {
		Op       string `json:"op"`
		JSONPath string `json:"jsonPath,omitempty"` // Path is below what it selects
		Path     string `json:"path"`
		Value    any    `json:"value"`
	}
)

// managerPath selects the HTTP connection manager of a listener, with TLS (in filter_chains) or without
// (default_filter_chain), and whatever network filters are before it.
const managerPath = "..filters[?(@.name=='" + managerName + "')].typed_config"

// EnvoyPatchPolicy renders WholeListener for Envoy Gateway: an EnvoyPatchPolicy that hands the
// routes of one HTTP listener of a Gateway over to Cascade.
func EnvoyPatchPolicy(c PatchConfig) (*Object, error) {
	if c.Name == "" || c.Namespace == "" || c.Gateway == "" || c.Section == "" {
		return nil, errors.New("attach: give the name and the namespace of the object, the Gateway and its listener")
	}
	h, err := wholeListenerWithoutBootstrap(c.Config)
	if err != nil {
		return nil, err
	}
	spec := patchPolicySpec{TargetRef: targetRef{"gateway.networking.k8s.io", "Gateway", c.Gateway}, Type: "JSONPatch"}
	for _, cluster := range h.Clusters {
		value, err := asJSON(cluster)
		if err != nil {
			return nil, err
		}
		spec.JSONPatches = append(spec.JSONPatches, jsonPatch{resources.ClusterType, cluster.Name, patchOperation{Op: "add", Value: value}})
	}
	listener := strings.Join([]string{c.Namespace, c.Gateway, c.Section}, "/")
	patch := func(op, at, path string, value any) {
		spec.JSONPatches = append(spec.JSONPatches, jsonPatch{resources.ListenerType, listener, patchOperation{op, at, path, value}})
	}
	// From the last to the first, so that they stand in order before the gateway's own filters.
	filters := h.Manager.HttpFilters
	h.Manager.HttpFilters = nil
	fields, err := fieldsOf(h.Manager)
	if err != nil {
		return nil, err
	}
	for _, f := range fields {
		op := "add" // which replaces a value that is there
		if f.name == "rds" {
			op = "replace" // there is always one
		}
		patch(op, managerPath, "/"+f.name, f.value)
	}
	for i := len(filters) - 1; i >= 0; i-- {
		value, err := asJSON(filters[i])
		if err != nil {
			return nil, err
		}
		patch("add", managerPath, "/http_filters/0", value)
	}
	patch("add", "", "/"+bufferLimitField, c.ConnectionBuffer())
	return &Object{"gateway.envoyproxy.io/v1alpha1", "EnvoyPatchPolicy", ObjectMeta{c.Name, c.Namespace}, spec}, nil
}

// FilterConfig is the input of EnvoyFilter.
type FilterConfig struct {
	Config
	// Name and Namespace are those of the object; the namespace must be the gateway's.
	Name, Namespace string
	// Labels select the pods of the gateway.
	Labels map[string]string
	// Port is the listener's port inside those pods.
	Port uint16
}

// The parts of an EnvoyFilter that are used here.
type (
	envoyFilterSpec struct {
		WorkloadSelector workloadSelector `json:"workloadSelector"`
		ConfigPatches    []configPatch    `json:"configPatches"`
	}
	workloadSelector struct {
		Labels map[string]string `json:"labels"`
	}
	configPatch struct {
		ApplyTo string      `json:"applyTo"`
		Match   configMatch `json:"match"`
		Patch   configValue `json:"patch"`
	}
	configMatch struct {
		Context  string         `json:"context"`
		Listener *listenerMatch `json:"listener,omitempty"`
	}
	listenerMatch struct {
		PortNumber  uint16            `json:"portNumber"`
		FilterChain *filterChainMatch `json:"filterChain,omitempty"`
	}
	filterChainMatch struct {
		Filter filterMatch `json:"filter"`
	}
	filterMatch struct {
		Name      string         `json:"name"`
		SubFilter *namedSubMatch `json:"subFilter,omitempty"`
	}
	namedSubMatch struct {
		Name string `json:"name"`
	}
	configValue struct {
		Operation string `json:"operation"`
		Value     any    `json:"value"`
	}
)

const (
	managerName = "envoy.filters.network.http_connection_manager"
	managerType = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	routerName  = "envoy.filters.http.router"
)

// EnvoyFilter renders WholeListener for Istio: an EnvoyFilter that hands the routes of one
// listener of an ingress gateway over to Cascade.
func EnvoyFilter(c FilterConfig) (*Object, error) {
	if c.Name == "" || c.Namespace == "" || len(c.Labels) == 0 || c.Port == 0 {
		return nil, errors.New("attach: give the name and the namespace of the object, the labels of the gateway's pods and the listener's port")
	}
	h, err := wholeListenerWithoutBootstrap(c.Config)
	if err != nil {
		return nil, err
	}
	var patches []configPatch
	add := func(applyTo string, listener *listenerMatch, operation string, value any) {
		patches = append(patches, configPatch{applyTo, configMatch{"GATEWAY", listener}, configValue{operation, value}})
	}
	for _, cluster := range h.Clusters {
		value, err := asJSON(cluster)
		if err != nil {
			return nil, err
		}
		add("CLUSTER", nil, "ADD", value)
	}
	filters := h.Manager.HttpFilters
	h.Manager.HttpFilters = nil
	fields, err := fieldsOf(h.Manager)
	if err != nil {
		return nil, err
	}
	manager := orderedObject(append([]field{{"@type", json.RawMessage(`"` + managerType + `"`)}}, fields...))
	at := func(sub *namedSubMatch) *listenerMatch {
		return &listenerMatch{c.Port, &filterChainMatch{filterMatch{managerName, sub}}}
	}
	add("NETWORK_FILTER", at(nil), "MERGE", orderedObject{{"typed_config", manager}})
	add("LISTENER", &listenerMatch{PortNumber: c.Port}, "MERGE", orderedObject{{bufferLimitField, c.ConnectionBuffer()}})
	for _, f := range filters {
		value, err := asJSON(f)
		if err != nil {
			return nil, err
		}
		add("HTTP_FILTER", at(&namedSubMatch{routerName}), "INSERT_BEFORE", value)
	}
	return &Object{"networking.istio.io/v1alpha3", "EnvoyFilter", ObjectMeta{c.Name, c.Namespace},
		envoyFilterSpec{workloadSelector{c.Labels}, patches}}, nil
}

// wholeListenerWithoutBootstrap renders WholeListener for a host whose Envoys' bootstraps are
// out of reach.
func wholeListenerWithoutBootstrap(c Config) (*EnvoyConfig, error) {
	if c.LoadReports {
		return nil, errors.New("attach: load reports are part of Envoy's bootstrap, which the gateway's own control plane writes")
	}
	return WholeListener(c)
}

// field is a field of a message or object.
type field struct {
	name  string
	value any
}

// orderedObject marshals to a JSON object in the order of its fields.
type orderedObject []field

// MarshalJSON implements json.Marshaler.
func (o orderedObject) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for i, f := range o {
		if i > 0 {
			out = append(out, ',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(f.value)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, name...), ':'), value...)
	}
	return append(out, '}'), nil
}

func asJSON(m proto.Message) (json.RawMessage, error) {
	text, err := resources.FormatJSON(m)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", err)
	}
	return text, nil
}

// fieldsOf returns the fields of a message in the order of its JSON.
func fieldsOf(m proto.Message) (out []field, err error) {
	text, err := asJSON(m)
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	if _, err := d.Token(); err != nil { // the brace
		return nil, fmt.Errorf("attach: %w", err)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("attach: %w", err)
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("attach: %w", err)
		}
		out = append(out, field{fmt.Sprint(name), value})
	}
	return out, nil
}
