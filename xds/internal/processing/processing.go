// Package processing has what the external processors of a gateway share (envoy.service.ext_proc.v3): the loop of a
// stream, the options of the server, and the parts of answers. Serve runs an Exchange, which decides and does no I/O.
package processing

import (
	"errors"
	"io"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

const (
	// DefaultDeadline allows for the slow upload of a body.
	DefaultDeadline = 60 * time.Second
	// MaxHeaders is the size of a message without its body: Envoy limits request headers to 60 KiB.
	MaxHeaders = 256 << 10
	// maxStreams bounds the concurrent requests of one connection.
	maxStreams = 100_000
	// pingAfter and pingTimeout detect a dead gateway; minPing is below the interval of its own pings.
	pingAfter, pingTimeout, minPing = 30 * time.Second, 5 * time.Second, time.Second
)

// Options returns the gRPC server options for bodies of up to maxBody bytes in one message: gRPC's default is 4 MiB.
func Options(maxBody int) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxBody + MaxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingTimeout}),
		// Envoy pings idle connections every 2 s; without this the server would close them.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPing, PermitWithoutStream: true}),
	}
}

// Exchange is one request and its response. It is used by one goroutine.
type Exchange interface {
	// Step handles a message and returns the answers to it, in order. An error ends the stream with it.
	Step(*extproc.ProcessingRequest) ([]*extproc.ProcessingResponse, error)
	// Late is called once if the stream still runs at its deadline, and returns what to send.
	Late() []*extproc.ProcessingResponse
	// Sent is called when the answers of Step or Late are sent, and reports whether the stream is to be closed.
	Sent() (done bool)
}

// Serve runs an exchange on a stream until one of them ends it.
func Serve(stream extproc.ExternalProcessor_ProcessServer, deadline time.Duration, x Exchange) error {
	stop := make(chan struct{})
	defer close(stop)
	incoming := receive(stream, stop)
	timer := time.NewTimer(deadline)
	defer timer.Stop()
	for {
		var out []*extproc.ProcessingResponse
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-timer.C:
			out = x.Late()
		case in := <-incoming:
			if errors.Is(in.err, io.EOF) {
				return nil
			} else if in.err != nil {
				return in.err
			}
			var err error
			if out, err = x.Step(in.request); err != nil {
				return err
			}
		}
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if x.Sent() {
			return nil
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

// HeaderValue returns a header's value: Envoy sends raw_value, other gateways may still send value.
func HeaderValue(v *corev3.HeaderValue) string {
	if raw := v.GetRawValue(); len(raw) > 0 {
		return string(raw)
	}
	return v.GetValue()
}

// SetHeader replaces every value of a header. Envoy reads raw_value only; value would set the header to "".
func SetHeader(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: name, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// HeadersAnswer answers the headers of a request.
func HeadersAnswer(c *extproc.CommonResponse) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{Response: c}}}
}

// BodyAnswer answers the body of a request, or a piece of it.
func BodyAnswer(c *extproc.CommonResponse) *extproc.ProcessingResponse {
	return &extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{Response: c}}}
}
