package endpointpicker

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/xds/internal/processing/processingtest"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// scenario is the state of one file of testdata.
type scenario struct {
	*plane
	view     resources.View
	random   uint64
	registry *prometheus.Registry
	messages []*extproc.ProcessingRequest
}

// TestScenarios runs testdata/*.txt (package datadriven, see testkit.TestScenarios): the
// messages of one stream, one in each line, and the answers. Addresses 10.0.0.N:8000 are
// printed as .N.
//
//	two-models                    changes the view; the first is twoStages
//	health ID draining|unhealthy|healthy   and the health of a replica in it
//	cut N                         and the boundary of its stages
//	publish                       the view, and waits for the picker to know it
//	pool [ADDRESS]…               the endpoints of the pool, instead of a plan
//	conformance                   from now on the headers of the conformance suite are obeyed
//	random N                      the random number of the following requests
//	get|post [NAME=VALUE]…        the headers of a request without a body, or with one; of the
//	                              names, "host" is :authority, "mode" the body mode of the filter
//	                              (none: not stated), "subset" the subset hint as a list, "hint"
//	                              the hint as JSON
//	body [TEXT] [prompt=N [model=M]] [end]  a piece of a body, or a body with a prompt of N bytes
//	trailers, response-headers [served=ADDRESS], response-body [TEXT] [end],
//	response-trailers, empty, window        these messages
//	send                          sends the messages so far and prints the answers
//	metrics                       prints the counters that are not 0
func TestScenarios(t *testing.T) {
	testkit.TestScenarios(t, "testdata", func(t *testing.T) testkit.Player {
		s := &scenario{view: twoStages(), registry: prometheus.NewPedanticRegistry()}
		s.plane = startPlane(t, Config{Fallbacks: 3, MaxBody: 100_000, BodyMemory: 150_000, Random: func() uint64 { return s.random }, Metrics: s.registry})
		return func(words []string) ([]string, error) { return s.play(t, words) }
	})
}

func (s *scenario) play(t *testing.T, words []string) (out []string, err error) {
	switch words[0] {
	case "two-models":
		s.view = withSecondModel(s.view)
	case "health":
		i := slices.IndexFunc(s.view.Endpoints, func(e resources.Endpoint) bool { return string(e.ID) == words[1] })
		s.view.Endpoints[i].Health = map[string]resources.Health{"draining": resources.Draining, "unhealthy": resources.Unhealthy}[words[2]]
	case "cut":
		stages := s.view.Plans[0].Stages
		_, err = fmt.Sscan(words[1], &stages[0].High)
		stages[1].Low = stages[0].High
	case "publish":
		s.view.Plans[0].Epoch++
		s.publish(s.view)
	case "pool":
		var addresses []netip.AddrPort
		for _, a := range words[1:] {
			addresses = append(addresses, netip.MustParseAddrPort(a))
		}
		s.updatePool(addresses)
	case "conformance":
		s.picker.config.ConformanceTest = true
	case "random":
		s.random, err = strconv.ParseUint(words[1], 10, 64)
	case "send":
		out = talk(t, s.client, s.messages...)
		s.messages = nil
	case "metrics":
		return s.counters()
	default:
		m, err := parseMessage(words)
		s.messages = append(s.messages, m)
		return nil, err
	}
	return out, err
}

func (s *scenario) counters() (out []string, err error) {
	families, err := s.registry.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if v := m.GetCounter().GetValue() + m.GetGauge().GetValue(); v != 0 {
				out = append(out, strings.TrimPrefix(fmt.Sprintf("%s %s %v", f.GetName(), strings.Join(labels, " "), v), "cascade_endpoint_picker_"))
			}
		}
	}
	return out, err
}

// parseMessage parses a line of a scenario.
func parseMessage(words []string) (*extproc.ProcessingRequest, error) {
	switch words[0] {
	case "get", "post":
		return parseHeaders(words)
	case "body":
		text, end := parseBody(words[1:])
		return processingtest.Body(text, end), nil
	case "trailers":
		return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{RequestTrailers: &extproc.HttpTrailers{}}}, nil
	case "response-headers":
		m := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{}}}
		if len(words) > 1 {
			m.MetadataContext = metadata("envoy.lb", "x-gateway-destination-endpoint-served", structpb.NewStringValue(strings.TrimPrefix(words[1], "served=")))
		}
		return m, nil
	case "response-body":
		text, end := parseBody(words[1:])
		return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{Body: []byte(text), EndOfStream: end}}}, nil
	case "response-trailers":
		return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extproc.HttpTrailers{}}}, nil
	case "empty":
		return &extproc.ProcessingRequest{}, nil
	case "window":
		return &extproc.ProcessingRequest{ClientWindowUpdate: &extproc.ProcessingRequest_ClientWindowUpdate{}}, nil
	}
	return nil, fmt.Errorf("no such message: %s", words[0])
}

func parseHeaders(words []string) (*extproc.ProcessingRequest, error) {
	m := headers(words[0] == "get")
	h := m.GetRequestHeaders().Headers
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "host":
			name = ":authority"
		case "mode":
			if value == "none" {
				m.ProtocolConfig = nil
			} else {
				mode := filterv3.ProcessingMode_BodySendMode(filterv3.ProcessingMode_BodySendMode_value[value])
				m.ProtocolConfig.RequestBodyMode, m.ProtocolConfig.ResponseBodyMode = mode, mode
			}
			continue
		case "subset":
			list := new(structpb.ListValue)
			for entry := range strings.FieldsFuncSeq(value, func(r rune) bool { return r == ',' }) {
				list.Values = append(list.Values, structpb.NewStringValue(entry))
			}
			m.MetadataContext = metadata(subsetNamespace, subsetKey, structpb.NewListValue(list))
			continue
		case "hint":
			v := new(structpb.Value)
			if err := protojson.Unmarshal([]byte(value), v); err != nil {
				return nil, err
			}
			m.MetadataContext = metadata(subsetNamespace, subsetKey, v)
			continue
		}
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: name, RawValue: []byte(value)})
	}
	return m, nil
}

func metadata(namespace, key string, value *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: value}}}}
}

func parseBody(words []string) (text string, end bool) {
	var b bytes.Buffer
	prompt, model := -1, "m"
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "end":
			end = true
		case "prompt":
			prompt, _ = strconv.Atoi(value)
		case "model":
			model = value
		default:
			b.WriteString(w)
		}
	}
	if prompt >= 0 {
		fmt.Fprintf(&b, `{"model":%q,"prompt":%q}`, model, strings.Repeat("x", prompt))
	}
	return b.String(), end
}
