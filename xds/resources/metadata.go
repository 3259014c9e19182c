package resources

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
)

// RouteMeta is the metadata of a route under MetadataKey. From the routes (cuts and
// epoch) and the endpoints (members) the plan can be read back. Numbers that may exceed
// 2^53 are decimal strings, because a protobuf Struct holds doubles.
type RouteMeta struct {
	Model     string
	Epoch     policies.Epoch
	Stage     int // index in the plan
	Low, High policies.Tokens
	Rule      Rule
}

// Rule says by what a route matches its requests.
type Rule string

// The rules, in the order in which their routes stand in a virtual host.
const (
	ByTokens Rule = "tokens" // model and trusted length known: the stage whose range holds it
	ByModel  Rule = "model"  // model known, length not: the last stage
	ByBytes  Rule = "bytes"  // only the body's size known
	ByNone   Rule = "none"   // nothing known: the last stage, or a 404 where that would guess the model
)

func (m RouteMeta) metadata() *corev3.Metadata {
	return cascadeMetadata(map[string]*structpb.Value{
		"model": structpb.NewStringValue(m.Model),
		"epoch": structpb.NewStringValue(strconv.FormatUint(uint64(m.Epoch), 10)),
		"stage": structpb.NewNumberValue(float64(m.Stage)),
		"low":   structpb.NewStringValue(strconv.FormatInt(int64(m.Low), 10)),
		"high":  structpb.NewStringValue(strconv.FormatInt(int64(m.High), 10)),
		"rule":  structpb.NewStringValue(string(m.Rule)),
	})
}

// ReadRouteMeta decodes a route's metadata. The error names what is missing or
// malformed; the other fields are then unspecified.
func ReadRouteMeta(md *corev3.Metadata) (RouteMeta, error) {
	f := md.GetFilterMetadata()[MetadataKey].GetFields()
	m := RouteMeta{Model: f["model"].GetStringValue(), Rule: Rule(f["rule"].GetStringValue())}
	if m.Model == "" {
		return m, fmt.Errorf("route metadata %q names no model", MetadataKey)
	}
	stage := f["stage"].GetNumberValue()
	m.Stage = int(stage)
	if float64(m.Stage) != stage || m.Stage < 0 || m.Stage >= policies.MaxStages || f["stage"] == nil {
		return m, fmt.Errorf("route metadata %q: stage %v is not a stage of a plan", MetadataKey, stage)
	}
	epoch, err := strconv.ParseUint(f["epoch"].GetStringValue(), 10, 64)
	if err != nil {
		return m, fmt.Errorf("route metadata %q: epoch: %w", MetadataKey, err)
	}
	m.Epoch = policies.Epoch(epoch)
	for _, b := range [...]struct {
		key string
		to  *policies.Tokens
	}{{"low", &m.Low}, {"high", &m.High}} {
		n, err := strconv.ParseInt(f[b.key].GetStringValue(), 10, 64)
		if err != nil {
			return m, fmt.Errorf("route metadata %q: %s: %w", MetadataKey, b.key, err)
		}
		*b.to = policies.Tokens(n)
	}
	return m, nil
}

// EndpointMeta is the metadata of an endpoint under MetadataKey.
type EndpointMeta struct {
	ID   policies.ReplicaID
	Peer string // host:port where other migrators reach the replica
	Host string // "" if unknown
	// Capacity is the replica's capacity; the zero value if unknown.
	Capacity policies.Capacity
	Adapters []string // LoRA adapters that it has loaded, sorted
	// Prefill says that it is a prefill replica.
	Prefill bool
}

func (m EndpointMeta) metadata() *corev3.Metadata {
	fields := map[string]*structpb.Value{
		"id":   structpb.NewStringValue(string(m.ID)),
		"peer": structpb.NewStringValue(m.Peer),
		"host": structpb.NewStringValue(m.Host),
	}
	if c := m.Capacity; c != (policies.Capacity{}) {
		fields["kv"] = structpb.NewStringValue(strconv.FormatInt(int64(c.KV), 10))
		fields["batch"] = structpb.NewNumberValue(float64(c.Batch))
		if c.TransferRate != 0 {
			fields["transfer_rate"] = structpb.NewNumberValue(c.TransferRate)
		}
	}
	if len(m.Adapters) > 0 {
		fields["adapters"] = encodeNames(m.Adapters)
	}
	if m.Prefill {
		fields["prefill"] = structpb.NewBoolValue(true)
	}
	return cascadeMetadata(fields)
}

// ReadEndpointMeta decodes an endpoint's metadata; a missing id or an invalid capacity
// is an error.
func ReadEndpointMeta(md *corev3.Metadata) (EndpointMeta, error) {
	f := md.GetFilterMetadata()[MetadataKey].GetFields()
	m := EndpointMeta{
		ID:       policies.ReplicaID(f["id"].GetStringValue()),
		Peer:     f["peer"].GetStringValue(),
		Host:     f["host"].GetStringValue(),
		Adapters: readNames(f["adapters"]),
		Prefill:  f["prefill"].GetBoolValue(),
	}
	if m.ID == "" {
		return m, fmt.Errorf("endpoint metadata %q names no id", MetadataKey)
	}
	if f["kv"] == nil {
		return m, nil
	}
	kv, err := strconv.ParseInt(f["kv"].GetStringValue(), 10, 64)
	if err != nil {
		return m, fmt.Errorf("endpoint metadata %q: kv: %w", MetadataKey, err)
	}
	batch := f["batch"].GetNumberValue()
	m.Capacity = policies.Capacity{KV: policies.Tokens(kv), Batch: int(batch), TransferRate: f["transfer_rate"].GetNumberValue()}
	if batch > math.MaxInt32 || float64(m.Capacity.Batch) != batch {
		return m, fmt.Errorf("endpoint metadata %q: batch %v is not a number of requests", MetadataKey, batch)
	}
	if err := m.Capacity.Validate(); err != nil {
		return m, fmt.Errorf("endpoint metadata %q: %w", MetadataKey, err)
	}
	return m, nil
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

func cascadeMetadata(fields map[string]*structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{MetadataKey: {Fields: fields}}}
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
