package length

import (
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/xds/internal/processing"
)

// Process handles one request of an Envoy. It closes the stream after its last response
// instead of waiting for Envoy to do so: that is allowed, and a fifth cheaper. It sends
// at most two messages.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	return processing.Serve(stream, s.config.Deadline, &exchange{server: s})
}

// exchange is the state of one request.
type exchange struct {
	server  *Server
	model   string // known from the host, or ""
	headers bool   // request headers were seen
	waiting bool   // the body was requested
}

// Step implements processing.Exchange.
func (x *exchange) Step(r *extproc.ProcessingRequest) ([]*extproc.ProcessingResponse, error) {
	answer, err := x.step(r)
	if err != nil {
		x.server.metrics.count(refused)
		x.server.warned.Do(func() { x.server.config.Logger.Warn("length estimator cannot answer", "error", err) })
	}
	return []*extproc.ProcessingResponse{answer}, err
}

// Late implements processing.Exchange. After a clean close Envoy continues without this filter, and the request takes the
// route for requests without an estimate.
func (x *exchange) Late() []*extproc.ProcessingResponse {
	x.server.metrics.count(late)
	x.waiting = false
	return nil
}

// Sent implements processing.Exchange.
func (x *exchange) Sent() (done bool) { return !x.waiting }

// step handles one message. It was the last one unless x.waiting is set.
func (x *exchange) step(r *extproc.ProcessingRequest) (*extproc.ProcessingResponse, error) {
	switch m := r.GetRequest().(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		if x.headers {
			return nil, status.Error(codes.InvalidArgument, "request_headers came twice on one stream")
		}
		x.headers = true
		return x.onHeaders(m.RequestHeaders, r.GetProtocolConfig())
	case *extproc.ProcessingRequest_RequestBody:
		// Mode BUFFERED sends the whole body in one message. end_of_stream is
		// not set on it when trailers follow.
		x.waiting = false
		return x.onBody(m.RequestBody.GetBody()), nil
	case nil:
		return nil, status.Error(codes.InvalidArgument, "the ProcessingRequest is empty: none of request_headers, request_body, … is set")
	default:
		x.waiting = false
		x.server.metrics.count(skipped)
		return passThrough(r)
	}
}

// onHeaders answers from the headers if they suffice, and requests the body otherwise.
func (x *exchange) onHeaders(h *extproc.HttpHeaders, p *extproc.ProtocolConfiguration) (*extproc.ProcessingResponse, error) {
	s := x.server
	var authority, contentLength string
	for _, v := range h.GetHeaders().GetHeaders() {
		switch v.GetKey() {
		case ":authority":
			authority = processing.HeaderValue(v)
		case "content-length":
			contentLength = processing.HeaderValue(v)
		}
	}
	x.model = s.byHost(authority)
	step, size := length.Headers{
		ContentLength: contentLength, Ended: h.GetEndOfStream(), Model: x.model != "",
	}.Strategy(int64(s.config.MaxBody))
	switch step {
	case length.ModelOnly:
		s.metrics.count(noBody)
		return processing.HeadersAnswer(withoutEstimate(x.model)), nil
	case length.BySize:
		s.metrics.count(fromHeaders)
		return processing.HeadersAnswer(withEstimate(x.model, s.estimator(x.model).FromContentLength(size))), nil
	case length.RejectBody:
		s.metrics.count(tooLarge)
		return rejectTooLarge(s.config.MaxBody), nil
	}
	switch mode := p.GetRequestBodyMode(); mode {
	case filterv3.ProcessingMode_NONE, filterv3.ProcessingMode_BUFFERED:
	default:
		return nil, status.Errorf(codes.FailedPrecondition,
			"request_body_mode of the ext_proc filter is %s; set it to NONE with allow_mode_override, so that bodies are sent whole and only when needed", mode)
	}
	x.waiting = true
	return requestBody(), nil
}

// onBody answers from the whole body.
func (x *exchange) onBody(body []byte) *extproc.ProcessingResponse {
	s := x.server
	s.metrics.bodies.Observe(float64(len(body)))
	if len(body) > s.config.MaxBody {
		s.metrics.count(tooLarge)
		return rejectTooLarge(s.config.MaxBody)
	}
	var scanner length.Scanner
	scanner.Write(body)
	count := scanner.Count()
	model := x.model
	if model == "" {
		model = s.byName(string(scanner.Model()))
	}
	switch {
	case model == "":
		s.metrics.count(unknownModel)
	case count.Malformed || !count.Found:
		s.metrics.count(fromBodySize)
	default:
		s.metrics.count(fromBody)
	}
	return processing.BodyAnswer(withEstimate(model, s.estimator(model).FromBody(count)))
}

func (s *Server) estimator(model string) length.Estimator {
	return length.Estimator{BytesPerToken: s.config.BytesPerToken(model)}
}
