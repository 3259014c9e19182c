package length

import (
	"errors"
	"io"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/policies/length"
)

// Process handles one request of an Envoy. It closes the stream after its last response
// instead of waiting for Envoy to do so: that is allowed, and a fifth cheaper. It sends
// at most two messages.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	stop := make(chan struct{})
	defer close(stop)
	incoming := receive(stream, stop)
	deadline := time.NewTimer(s.config.Deadline)
	defer deadline.Stop()

	x := exchange{server: s}
	for {
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-deadline.C:
			// After a clean close Envoy continues without this filter, and the request takes the
			// route for requests without an estimate.
			s.metrics.count(late)
			return nil
		case in := <-incoming:
			if errors.Is(in.err, io.EOF) {
				return nil
			} else if in.err != nil {
				return in.err
			}
			answer, err := x.step(in.request)
			if err != nil {
				s.metrics.count(refused)
				s.warned.Do(func() { s.config.Logger.Warn("length estimator cannot answer", "error", err) })
				return err
			}
			if err := stream.Send(answer); err != nil {
				return err
			}
			if !x.waiting {
				return nil
			}
		}
	}
}

type message struct {
	request *extproc.ProcessingRequest
	err     error
}

// receive reads the stream on another goroutine, so that a deadline can interrupt the
// wait for a body. The goroutine ends with the stream: gRPC fails Recv as soon as
// Process has returned.
func receive(stream extproc.ExternalProcessor_ProcessServer, stop <-chan struct{}) <-chan message {
	c := make(chan message)
	go func() {
		for {
			r, err := stream.Recv()
			select {
			case c <- message{r, err}:
			case <-stop:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

// exchange is the state of one request.
type exchange struct {
	server  *Server
	model   string // known from the host, or ""
	headers bool   // request headers were seen
	waiting bool   // the body was requested
}

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
			authority = headerValue(v)
		case "content-length":
			contentLength = headerValue(v)
		}
	}
	x.model = s.models.byHost(authority)
	step, size := length.Headers{
		ContentLength: contentLength, Ended: h.GetEndOfStream(), Model: x.model != "", Prefix: x.model != "" && s.config.Prefixes(x.model).Depth > 0,
	}.Strategy(int64(s.config.MaxBody))
	switch step {
	case length.ModelOnly:
		s.metrics.count(noBody)
		return headersAnswer(withoutEstimate(x.model)), nil
	case length.BySize:
		s.metrics.count(fromHeaders)
		return headersAnswer(withEstimate(x.model, s.estimator(x.model).FromContentLength(size))), nil
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
	scanner.HashPrefix(s.prefixDepth(x.model))
	scanner.Write(body)
	count := scanner.Count()
	model := x.model
	if model == "" {
		model = s.byName(scanner.Model())
	}
	switch {
	case model == "":
		s.metrics.count(unknownModel)
	case count.Malformed || !count.Found:
		s.metrics.count(fromBodySize)
	default:
		s.metrics.count(fromBody)
	}
	answer := withEstimate(model, s.estimator(model).FromBody(count))
	if model != "" {
		if key, ok := s.config.Prefixes(model).Key(&scanner); ok {
			setPrefix(answer, key)
		}
	}
	return bodyAnswer(answer)
}

// prefixDepth returns the depth to which a body is hashed: the model's, or the largest of all
// models while the model is unknown.
func (s *Server) prefixDepth(model string) (depth int64) {
	if model != "" {
		return s.config.Prefixes(model).Depth
	}
	for name := range s.models.names {
		depth = max(depth, s.config.Prefixes(name).Depth)
	}
	return depth
}

func (s *Server) estimator(model string) length.Estimator {
	return length.Estimator{BytesPerToken: s.config.BytesPerToken(model)}
}

// headerValue returns a header's value: Envoy sends raw_value, other clients may still
// send value.
func headerValue(v *corev3.HeaderValue) string {
	if raw := v.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return v.GetValue()
}
