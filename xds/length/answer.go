package length

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
)

// withEstimate sets the length and the model, and clears the route cache. For an unknown
// model, the model header is removed, whatever the client sent.
func withEstimate(model string, tokens policies.Tokens) *extproc.CommonResponse {
	// A route's open end excludes the largest int64 itself.
	tokens = min(tokens, policies.Unbounded-1)
	m := &extproc.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{processing.SetHeader(length.TokensHeader, strconv.FormatInt(int64(tokens), 10))}}
	return finish(m, model)
}

// withoutEstimate sets only the model.
func withoutEstimate(model string) *extproc.CommonResponse {
	return finish(&extproc.HeaderMutation{RemoveHeaders: []string{length.TokensHeader}}, model)
}

func finish(m *extproc.HeaderMutation, model string) *extproc.CommonResponse {
	if model == "" {
		m.RemoveHeaders = append(m.RemoveHeaders, length.ModelHeader)
	} else {
		m.SetHeaders = append(m.SetHeaders, processing.SetHeader(length.ModelHeader, model))
	}
	return &extproc.CommonResponse{HeaderMutation: m, ClearRouteCache: true}
}

// requestBody makes Envoy buffer the body and send it in one message. It changes no
// header: the second response does.
func requestBody() *extproc.ProcessingResponse {
	r := processing.HeadersAnswer(nil)
	r.ModeOverride = &filterv3.ProcessingMode{
		RequestHeaderMode:  filterv3.ProcessingMode_SEND,
		RequestBodyMode:    filterv3.ProcessingMode_BUFFERED,
		ResponseHeaderMode: filterv3.ProcessingMode_SKIP,
	}
	return r
}

// rejectTooLarge ends the request with an error in the format of the OpenAI API. The
// status must be set: otherwise Envoy would respond 200.
func rejectTooLarge(limit int) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extproc.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode_PayloadTooLarge},
		Headers: &extproc.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{processing.SetHeader("content-type", "application/json")}},
		Body:    []byte(length.TooLargeBody(int64(limit))),
		Details: "cascade_length_request_too_large",
	}}}
}

// passThrough answers a message that is about neither a request's headers nor its body
// with a response of the same kind: the protocol requires a response to every message.
func passThrough(r *extproc.ProcessingRequest) (*extproc.ProcessingResponse, error) {
	switch r.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestTrailers:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}}}, nil
	case *extproc.ProcessingRequest_ResponseHeaders:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{}}}, nil
	case *extproc.ProcessingRequest_ResponseBody:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{}}}, nil
	case *extproc.ProcessingRequest_ResponseTrailers:
		return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}}, nil
	}
	return nil, status.Errorf(codes.Unimplemented, "messages of type %T are not part of this service", r.GetRequest())
}
