package endpointpicker

import (
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/balance"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// phase is how far a request is.
type phase uint8

const (
	waiting phase = iota // for the headers
	holding              // the body, until it is complete
	passing              // endpoints are picked: everything passes
	refused              // the request is answered: the stream ends
)

// exchange is the state of one request. One goroutine uses it.
type exchange struct {
	server *Server
	view   *View // when the request began
	phase  phase

	duplex         bool // request body mode FULL_DUPLEX_STREAMED
	responseDuplex bool // the same of the response
	subset         *balance.Subset
	model          *Model   // nil: the body must name it
	stale          []string // headers of the client under Cascade's names
	body           *heldBody
	picked         choice
}

// release gives back the memory of a held body. It may be called more than once.
func (x *exchange) release() {
	if x.body != nil {
		x.body.share.Release()
		x.body = nil
	}
}

// Late implements processing.Exchange.
func (x *exchange) Late() []*extproc.ProcessingResponse {
	if x.phase == passing {
		return nil // a response may take as long as it likes
	}
	return x.refuse(refuseLate())
}

// Sent implements processing.Exchange.
func (x *exchange) Sent() (done bool) {
	if x.phase == passing {
		x.release() // what was held has been sent
	}
	return x.phase == refused
}

// Step implements processing.Exchange.
func (x *exchange) Step(r *extproc.ProcessingRequest) ([]*extproc.ProcessingResponse, error) {
	switch m := r.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		if x.phase != waiting {
			return nil, status.Error(codes.InvalidArgument, "request_headers came twice on one stream")
		}
		return x.onHeaders(r, m.RequestHeaders), nil
	case *extproc.ProcessingRequest_RequestBody:
		return x.onBody(m.RequestBody), nil
	case *extproc.ProcessingRequest_RequestTrailers:
		return x.onTrailers(), nil
	case *extproc.ProcessingRequest_ResponseHeaders:
		var c *extproc.CommonResponse
		served := servedOf(r.GetMetadataContext())
		if served != "" {
			x.server.metrics.countServed(x.picked.addresses, served)
		}
		if x.server.config.ConformanceTest {
			c = servedMutation(served)
		}
		return one(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{Response: c}}}), nil
	case *extproc.ProcessingRequest_ResponseBody:
		var c *extproc.CommonResponse
		if x.responseDuplex {
			c = streamed(m.ResponseBody.GetBody(), m.ResponseBody.GetEndOfStream())
		}
		return one(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseBody{ResponseBody: &extproc.BodyResponse{Response: c}}}), nil
	case *extproc.ProcessingRequest_ResponseTrailers:
		return one(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}}), nil
	}
	if r.GetClientWindowUpdate() != nil {
		return nil, nil // flow control alone needs no answer
	}
	return nil, status.Error(codes.InvalidArgument, "the ProcessingRequest is empty: none of request_headers, request_body, … is set")
}

func one(r *extproc.ProcessingResponse) []*extproc.ProcessingResponse {
	return []*extproc.ProcessingResponse{r}
}

// refuse answers the request.
func (x *exchange) refuse(r refusal) []*extproc.ProcessingResponse {
	x.server.metrics.count(r.outcome)
	if r.outcome == unsupported {
		x.server.warned.Do(func() { x.server.config.Logger.Warn("gateway cannot use the endpoint picker", "error", r.message) })
	}
	x.phase = refused
	x.release()
	return one(r.answer())
}

// onHeaders picks by the headers if they suffice, and holds the body otherwise.
func (x *exchange) onHeaders(r *extproc.ProcessingRequest, h *extproc.HttpHeaders) []*extproc.ProcessingResponse {
	s := x.server
	x.duplex, x.responseDuplex = true, true
	modes := r.GetProtocolConfig()
	if modes != nil { // older gateways do not send it: they use the protocol's modes
		x.responseDuplex = modes.GetResponseBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	x.subset = subsetOf(r.GetMetadataContext())
	if s.config.ConformanceTest {
		x.subset = testSelection(h.GetHeaders(), h.GetEndOfStream())
	}
	authority, contentLength := x.readHeaders(h.GetHeaders())
	switch {
	case len(x.view.models) == 0: // nothing is known yet: the model may well be served
		return x.refuse(refuseNoEndpoint(false))
	case x.view.pool != nil:
		x.model = x.view.pool
	case s.config.Model == "":
		x.model = x.view.ByHost(authority)
	default:
		if x.model = x.view.models[s.config.Model]; x.model == nil {
			return x.refuse(refuseNoEndpoint(false))
		}
	}
	step, size := length.Headers{
		ContentLength: contentLength, Ended: h.GetEndOfStream(), Model: x.model != nil,
	}.Strategy(int64(s.config.MaxBody))
	if modes != nil && step != length.ModelOnly {
		switch mode := modes.GetRequestBodyMode(); mode {
		case filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		case filterv3.ProcessingMode_BUFFERED:
			x.duplex = false
		case filterv3.ProcessingMode_NONE:
			// The body never comes: the headers must suffice.
			if x.model == nil && len(x.view.list) > 1 && !h.GetEndOfStream() {
				return x.refuse(refuseMode("its request_body_mode is NONE, and only the body names the model; set it to FULL_DUPLEX_STREAMED, or give each model a host name"))
			}
			x.duplex, step = false, length.BySize
			if size < 0 {
				step = length.ModelOnly
			}
		default:
			return x.refuse(refuseMode(fmt.Sprintf("its request_body_mode is %s; set it to FULL_DUPLEX_STREAMED", mode)))
		}
	}
	switch step {
	case length.ModelOnly:
		return x.answerHeaders(-1)
	case length.BySize:
		return x.answerHeaders(x.model.Estimator().FromContentLength(size))
	case length.RejectBody:
		return x.refuse(refuseTooLarge(s.config.MaxBody))
	}
	x.phase = holding
	x.body = &heldBody{share: s.budget.Share()}
	if x.duplex {
		return nil // the answer follows when the body is complete
	}
	return one(processing.HeadersAnswer(nil)) // and here the body follows the answer
}

// readHeaders returns the authority and the content-length, and collects the client's headers
// under Cascade's names.
func (x *exchange) readHeaders(h *corev3.HeaderMap) (authority, contentLength string) {
	for _, v := range h.GetHeaders() {
		switch name := v.GetKey(); {
		case name == ":authority":
			authority = processing.HeaderValue(v)
		case name == "content-length":
			contentLength = processing.HeaderValue(v)
		case length.IsControlHeader(name) && !slices.Contains(x.stale, name):
			x.stale = append(x.stale, name)
		}
	}
	return authority, contentLength
}

// onBody passes a piece of the body on, or holds it.
func (x *exchange) onBody(b *extproc.HttpBody) []*extproc.ProcessingResponse {
	switch x.phase {
	case passing:
		if x.duplex {
			return one(processing.BodyAnswer(streamed(b.GetBody(), b.GetEndOfStream())))
		}
		return one(processing.BodyAnswer(nil))
	case waiting:
		return x.refuse(refuseMode("it does not send request headers; set request_header_mode to SEND"))
	}
	if x.body.size+int64(len(b.GetBody())) > int64(x.server.config.MaxBody) {
		return x.refuse(refuseTooLarge(x.server.config.MaxBody))
	}
	if !x.body.grow(len(b.GetBody())) {
		return x.refuse(refuseForMemory())
	}
	x.body.scanner.Write(b.GetBody())
	if !x.duplex { // mode BUFFERED sends the whole body in one message
		return x.answerBody(false)
	}
	x.body.keep(b.GetBody())
	if b.GetEndOfStream() {
		return x.answerBody(true)
	}
	return nil
}

// onTrailers ends a held body, whose last piece did not say that it was the last one.
func (x *exchange) onTrailers() (out []*extproc.ProcessingResponse) {
	if x.phase == waiting {
		return x.refuse(refuseMode("it does not send request headers; set request_header_mode to SEND"))
	}
	if x.phase == holding {
		if out = x.answerBody(false); x.phase == refused {
			return out
		}
	}
	return append(out, &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestTrailers{RequestTrailers: &extproc.TrailersResponse{}}})
}

// answerHeaders picks endpoints for a request whose body is not read.
func (x *exchange) answerHeaders(tokens policies.Tokens) []*extproc.ProcessingResponse {
	if r, ok := x.pick(tokens); !ok {
		return x.refuse(r)
	}
	return one(x.withDestination(processing.HeadersAnswer(x.picked.mutation(x.stale))))
}

// answerBody picks endpoints for a request whose body is complete, and passes the body on.
func (x *exchange) answerBody(end bool) (out []*extproc.ProcessingResponse) {
	b := x.body
	if x.model == nil {
		if x.model = x.view.ByName(string(b.scanner.Model())); x.model == nil {
			return x.refuse(refuseUnknownModel())
		}
	}
	if r, ok := x.pick(x.model.Estimator().FromBody(b.scanner.Count())); !ok {
		return x.refuse(r)
	}
	if !x.duplex {
		return one(x.withDestination(processing.BodyAnswer(x.picked.mutation(x.stale))))
	}
	out = one(x.withDestination(processing.HeadersAnswer(x.picked.mutation(x.stale))))
	for i, piece := range b.pieces {
		out = append(out, processing.BodyAnswer(streamed(piece, end && i == len(b.pieces)-1)))
	}
	if end && len(b.pieces) == 0 {
		out = append(out, processing.BodyAnswer(streamed(nil, true)))
	}
	return out
}

// pick chooses the endpoints, among those known now: the upload of a held body takes time.
// A request that has no body names no model: where there are several, it may go to a replica
// of any.
func (x *exchange) pick(tokens policies.Tokens) (refusal, bool) {
	s, random := x.server, x.server.config.Random()
	now := s.view.Load()
	var name string
	var m *Model
	if x.model != nil {
		name = x.model.Model
		m = now.models[name]
	} else {
		m = now.Any(random)
	}
	if m == nil {
		return refuseNoEndpoint(false), false
	}
	stage, addresses := m.Stages.Pick(balance.PickRequest{Length: tokens, Random: random, Subset: x.subset})
	if len(addresses) == 0 {
		return refuseNoEndpoint(x.subset != nil), false
	}
	x.picked = choice{name, tokens, addresses[:min(len(addresses), 1+s.config.Fallbacks)]}
	x.phase = passing
	s.metrics.count(picked)
	s.metrics.stages.WithLabelValues(m.Model, resources.StageName(stage)).Inc()
	return refusal{}, true
}

// withDestination adds the metadata of the choice to an answer.
func (x *exchange) withDestination(r *extproc.ProcessingResponse) *extproc.ProcessingResponse {
	r.DynamicMetadata = x.picked.metadata()
	return r
}
