package endpointpicker

import (
	"fmt"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
)

// choice is the result of a pick.
type choice struct {
	model     string // "" if unknown
	length    policies.Tokens
	addresses []string
}

// mutation returns the changes to a request's headers: the destination, the estimate and the
// model, which the front end counts by. stale are the headers under Cascade's names that the
// client sent.
func (c choice) mutation(stale []string) *extproc.CommonResponse {
	m := &extproc.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{processing.SetHeader(DestinationHeader, c.destination())}}
	if c.length >= 0 {
		m.SetHeaders = append(m.SetHeaders, processing.SetHeader(length.TokensHeader, strconv.FormatInt(int64(min(c.length, policies.Unbounded-1)), 10)))
	}
	if c.model != "" {
		m.SetHeaders = append(m.SetHeaders, processing.SetHeader(length.ModelHeader, c.model))
	}
	for _, name := range stale {
		if !(name == length.TokensHeader && c.length >= 0 || name == length.ModelHeader && c.model != "") {
			m.RemoveHeaders = append(m.RemoveHeaders, name)
		}
	}
	return &extproc.CommonResponse{HeaderMutation: m, ClearRouteCache: true}
}

func (c choice) destination() string { return strings.Join(c.addresses, ",") }

// metadata returns the destination as the dynamic metadata of a response.
func (c choice) metadata() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		destinationNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			DestinationHeader: structpb.NewStringValue(c.destination()),
		}}),
	}}
}

// streamed returns a piece of a body in mode FULL_DUPLEX_STREAMED, in which the gateway
// forwards what the picker sends back.
func streamed(piece []byte, end bool) *extproc.CommonResponse {
	return &extproc.CommonResponse{BodyMutation: &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{
		StreamedResponse: &extproc.StreamedBodyResponse{Body: piece, EndOfStream: end},
	}}}
}

// refusal is an answer to the client instead of a choice.
type refusal struct {
	outcome outcome
	status  typev3.StatusCode
	body    string // "": an error with message and code
	code    string
	message string
	retry   bool // after a second
}

// answer returns the message that makes the gateway answer the request. The status must be
// set: otherwise Envoy would respond 200.
func (r refusal) answer() *extproc.ProcessingResponse {
	headers := []*corev3.HeaderValueOption{processing.SetHeader("content-type", "application/json")}
	if r.retry {
		headers = append(headers, processing.SetHeader("retry-after", "1"))
	}
	body := r.body
	if body == "" {
		body = publicapi.NewError(int(r.status), r.code, r.message).Body()
	}
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: r.status},
		Headers: &extproc.HeaderMutation{SetHeaders: headers},
		Body:    []byte(body),
		Details: "cascade_endpoint_picker_" + string(r.outcome),
	}}}
}

// The refusals.

func refuseNoEndpoint(subset bool) refusal {
	if subset {
		return refusal{outcome: notInSubset, status: typev3.StatusCode_ServiceUnavailable, code: "no_endpoint_in_subset", retry: true,
			message: "None of the endpoints that the gateway allows for this request takes requests now."}
	}
	return refusal{outcome: noEndpoint, status: typev3.StatusCode_ServiceUnavailable, code: "no_endpoint_ready", retry: true,
		message: "No replica of the model takes requests now."}
}

func refuseUnknownModel() refusal {
	return refusal{outcome: unknownModel, status: typev3.StatusCode_NotFound, code: "model_not_found",
		message: "The request names no model that is served here. Set \"model\" to one that is."}
}

func refuseTooLarge(limit int) refusal {
	return refusal{outcome: tooLarge, status: typev3.StatusCode_PayloadTooLarge, body: length.TooLargeBody(int64(limit))}
}

func refuseLate() refusal {
	return refusal{outcome: late, status: typev3.StatusCode_RequestTimeout, code: "request_timeout",
		message: "The request body did not arrive in time."}
}

func refuseForMemory() refusal {
	return refusal{outcome: shed, status: typev3.StatusCode_TooManyRequests, code: "overloaded", retry: true,
		message: "The request bodies in progress use all memory that they may."}
}

func refuseMode(what string) refusal {
	return refusal{outcome: unsupported, status: typev3.StatusCode_InternalServerError, code: "endpoint_picker_misconfigured",
		message: fmt.Sprintf("The gateway's ext_proc filter is not configured for an endpoint picker: %s.", what)}
}
