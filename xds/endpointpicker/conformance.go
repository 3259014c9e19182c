package endpointpicker

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
)

// The headers of the conformance suite of the Gateway API Inference Extension, which a picker
// obeys only with Config.ConformanceTest.
const (
	// selectionHeader of a request lists the endpoints that the picker may choose, as IP or
	// IP:port.
	selectionHeader = "test-epp-endpoint-selection"
	// servedHeader of a response is the endpoint that served, as the gateway reports it.
	servedHeader = "x-conformance-test-served-endpoint"
	// notServed is its value where the gateway reports none.
	notServed = "fail: missing destination endpoint served metadata"
)

// testSelection returns the endpoints that a request of the suite allows, in place of the
// gateway's subset hint. Without the header a request with a body may go nowhere and one without
// a body everywhere, as with the reference picker: the suite's tests rely on both.
func testSelection(h *corev3.HeaderMap, ended bool) *balance.Subset {
	for _, v := range h.GetHeaders() {
		if v.GetKey() == selectionHeader {
			return balance.NewSubset(processing.HeaderValue(v))
		}
	}
	if ended {
		return nil
	}
	return balance.NewSubset()
}

// servedMutation returns the change of a response by which the suite learns which endpoint
// served.
func servedMutation(served string) *extproc.CommonResponse {
	if served == "" {
		served = notServed
	}
	return &extproc.CommonResponse{HeaderMutation: &extproc.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{processing.SetHeader(servedHeader, served)}}}
}
