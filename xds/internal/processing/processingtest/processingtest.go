// Package processingtest is the gateway of an external processor, for tests.
package processingtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// Headers returns a gateway's first message, with pairs of name and value.
func Headers(end bool, pairs ...string) *extproc.ProcessingRequest {
	h := &corev3.HeaderMap{}
	for i := 0; i < len(pairs); i += 2 {
		h.Headers = append(h.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extproc.ProcessingRequest{
		Request:        &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: h, EndOfStream: end}},
		ProtocolConfig: &extproc.ProtocolConfiguration{},
	}
}

// Body returns a piece of a body.
func Body(b string, end bool) *extproc.ProcessingRequest {
	return &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: []byte(b), EndOfStream: end}}}
}

// Talk sends messages on one stream, which it then ends if end is set, and describes the answers and, last, the end of
// the stream.
func Talk(t testing.TB, c extproc.ExternalProcessorClient, end bool, describe func(*extproc.ProcessingResponse) string, messages ...*extproc.ProcessingRequest) (out []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream := testkit.Must(c.Process(ctx))
	for _, m := range messages {
		if err := stream.Send(m); err != nil {
			break // the server has ended the stream; Recv says how
		}
	}
	if end {
		_ = stream.CloseSend()
	}
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return append(out, "closed")
		} else if err != nil {
			return append(out, status.Code(err).String())
		}
		out = append(out, describe(r))
	}
}

// Changes returns what an answer answers, and what it changes.
func Changes(r *extproc.ProcessingResponse) (of string, c *extproc.CommonResponse) {
	switch m := r.GetResponse().(type) {
	case *extproc.ProcessingResponse_RequestHeaders:
		return "headers:", m.RequestHeaders.GetResponse()
	case *extproc.ProcessingResponse_RequestBody:
		return "body:", m.RequestBody.GetResponse()
	case *extproc.ProcessingResponse_RequestTrailers:
		return "trailers", nil
	case *extproc.ProcessingResponse_ResponseHeaders:
		return "response headers:", m.ResponseHeaders.GetResponse()
	case *extproc.ProcessingResponse_ResponseBody:
		return "response body:", m.ResponseBody.GetResponse()
	case *extproc.ProcessingResponse_ResponseTrailers:
		return "response trailers", nil
	case *extproc.ProcessingResponse_ImmediateResponse:
		i := m.ImmediateResponse
		of = fmt.Sprintf("%d:", i.GetStatus().GetCode())
		for _, h := range i.GetHeaders().GetSetHeaders() {
			of += " " + h.Header.Key + "=" + string(h.Header.RawValue)
		}
		return of + " " + string(i.Body), nil
	}
	return fmt.Sprintf("%T", r.GetResponse()), nil
}

// Describe describes an answer in one line.
func Describe(r *extproc.ProcessingResponse) string {
	out, c := Changes(r)
	if o := r.GetModeOverride(); o != nil {
		out += " body " + o.RequestBodyMode.String()
	}
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		if h.AppendAction != corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD || h.Header.Value != "" {
			out += " NOT OVERWRITTEN BY raw_value:"
		}
		out += " " + h.Header.Key + "=" + string(h.Header.RawValue)
	}
	for _, h := range c.GetHeaderMutation().GetRemoveHeaders() {
		out += " -" + h
	}
	if c.GetClearRouteCache() {
		out += " reroute"
	}
	if s := c.GetBodyMutation().GetStreamedResponse(); s != nil {
		out += fmt.Sprintf(" %d bytes", len(s.Body))
		if len(s.Body) <= 40 {
			out += fmt.Sprintf(" %q", s.Body)
		}
		if s.EndOfStream {
			out += " end"
		}
	}
	return strings.TrimSpace(out)
}

// Stream is the server's end of a stream, in memory.
type Stream struct {
	grpc.ServerStream
	Ctx      context.Context
	Requests chan *extproc.ProcessingRequest // closed: the gateway has closed its side
	Sent     []*extproc.ProcessingResponse
	Fail     error // the error of Send
}

// Context implements grpc.ServerStream.
func (s *Stream) Context() context.Context { return s.Ctx }

// Send keeps an answer.
func (s *Stream) Send(r *extproc.ProcessingResponse) error {
	s.Sent = append(s.Sent, r)
	return s.Fail
}

// Recv waits for a message or the end of the context.
func (s *Stream) Recv() (*extproc.ProcessingRequest, error) {
	select {
	case r, ok := <-s.Requests:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-s.Ctx.Done():
		return nil, status.FromContextError(s.Ctx.Err()).Err()
	}
}
