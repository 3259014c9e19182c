package resources

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// Rule says by what a route matches its requests.
type Rule string

// rules lists the rules.
var rules = [...]Rule{ByTokens, ByModel, ByBytes, ByNone}

// The rules, in the order in which their routes stand in a virtual host.
const (
	ByTokens Rule = "tokens" // model and trusted length known: the stage whose range holds it
	ByModel  Rule = "model"  // model known, length not: the last stage
	ByBytes  Rule = "bytes"  // only the body's size known
	ByNone   Rule = "none"   // nothing known: the last stage, or a 404 where that would guess the model
)

// endpointMetadata names the replica of an endpoint, for operators: all else that followers need to know of it is in
// their own resource, Routing.
func endpointMetadata(id policies.ReplicaID) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{MetadataKey: {
		Fields: map[string]*structpb.Value{"id": structpb.NewStringValue(string(id))},
	}}}
}

// ReplicaOf returns the replica of an endpoint; "" if its metadata names none.
func ReplicaOf(e *endpointv3.LbEndpoint) policies.ReplicaID {
	return policies.ReplicaID(e.GetMetadata().GetFilterMetadata()[MetadataKey].GetFields()["id"].GetStringValue())
}

// encodeNames returns a set of names as a value: sorted, without duplicates.
func encodeNames(list []string) *structpb.Value {
	sorted := slices.Compact(slices.Sorted(slices.Values(list)))
	values := make([]*structpb.Value, len(sorted))
	for i, n := range sorted {
		values[i] = structpb.NewStringValue(n)
	}
	return structpb.NewListValue(&structpb.ListValue{Values: values})
}

func readNames(v *structpb.Value) []string {
	var out []string
	for _, n := range v.GetListValue().GetValues() {
		if s := n.GetStringValue(); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// LengthMeta is the metadata of a virtual host under LengthFilter: what an estimator
// inside the proxy needs to know about one model.
type LengthMeta struct {
	Model         string
	BytesPerToken length.Ratio
	// Adapters are the names under which requests use the model with a LoRA adapter.
	Adapters []string
}

// Serves reports whether requests for that name belong to the model.
func (m LengthMeta) Serves(name string) bool {
	return name == m.Model || slices.Contains(m.Adapters, name)
}

func (m LengthMeta) value() *structpb.Struct {
	s := &structpb.Struct{Fields: map[string]*structpb.Value{
		"model":           structpb.NewStringValue(m.Model),
		"bytes_per_token": structpb.NewNumberValue(m.BytesPerToken.Float()),
	}}
	if len(m.Adapters) > 0 {
		s.Fields["adapters"] = encodeNames(m.Adapters)
	}
	return s
}

// lengthMetadata describes the models that a virtual host serves: a single one at the
// top level, several as a list.
func lengthMetadata(models []Model, endpoints []Endpoint) *corev3.Metadata {
	adapters := make(map[string][]string)
	for _, e := range endpoints {
		adapters[e.Model] = append(adapters[e.Model], e.Adapters...)
	}
	list := make([]*structpb.Value, len(models))
	for i, m := range models {
		list[i] = structpb.NewStructValue(LengthMeta{m.Name, m.BytesPerToken, adapters[m.Name]}.value())
	}
	s := list[0].GetStructValue()
	if len(models) > 1 {
		s = &structpb.Struct{Fields: map[string]*structpb.Value{
			"models": structpb.NewListValue(&structpb.ListValue{Values: list}),
		}}
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{LengthFilter: s}}
}

// ReadLengthMeta decodes the models that a virtual host serves: one if the host selects
// the model, several if the request must name it, none without metadata.
func ReadLengthMeta(md *corev3.Metadata) ([]LengthMeta, error) {
	s := md.GetFilterMetadata()[LengthFilter]
	if s == nil {
		return nil, nil
	}
	structs := []*structpb.Struct{s}
	if list := s.GetFields()["models"].GetListValue(); list != nil {
		structs = structs[:0]
		for _, v := range list.GetValues() {
			structs = append(structs, v.GetStructValue())
		}
	}
	models := make([]LengthMeta, 0, len(structs))
	for _, s := range structs {
		f := s.GetFields()
		m := LengthMeta{
			Model:         f["model"].GetStringValue(),
			BytesPerToken: length.RatioOf(f["bytes_per_token"].GetNumberValue()),
			Adapters:      readNames(f["adapters"]),
		}
		if m.Model == "" {
			return nil, fmt.Errorf("host metadata %q: a model must have a name", LengthFilter)
		}
		models = append(models, m)
	}
	return models, nil
}
