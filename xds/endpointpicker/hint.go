package endpointpicker

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/policies/balance"
)

// The names of the protocol.
const (
	// DestinationHeader is the header with the chosen addresses, and their key in the metadata.
	DestinationHeader = "x-gateway-destination-endpoint"
	// destinationNamespace is the namespace of that metadata, in both directions.
	destinationNamespace = "envoy.lb"
	// servedKey is, in the metadata of a response, the address that served the request.
	servedKey = "x-gateway-destination-endpoint-served"
	// subsetNamespace and subsetKey are where a gateway lists the endpoints of a request.
	subsetNamespace = "envoy.lb.subset_hint"
	subsetKey       = "x-gateway-destination-endpoint-subset"
)

// subsetOf decodes a gateway's subset hint: a list of endpoints, or a text with commas. nil
// means that there is none. A hint of another type, or with entries that are no endpoints,
// is a hint all the same: it allows what it names and nothing else.
func subsetOf(md *corev3.Metadata) *balance.Subset {
	hint, ok := md.GetFilterMetadata()[subsetNamespace].GetFields()[subsetKey]
	if !ok {
		return nil
	}
	switch hint.GetKind().(type) {
	case *structpb.Value_StringValue:
		return balance.NewSubset(hint.GetStringValue())
	case *structpb.Value_ListValue:
		values := hint.GetListValue().GetValues()
		entries := make([]string, 0, len(values))
		for _, v := range values {
			entries = append(entries, v.GetStringValue())
		}
		return balance.NewSubset(entries...)
	}
	return balance.NewSubset()
}

// servedOf returns the address that served a request, "" if the gateway does not say.
func servedOf(md *corev3.Metadata) string {
	return md.GetFilterMetadata()[destinationNamespace].GetFields()[servedKey].GetStringValue()
}
