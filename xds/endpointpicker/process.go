package endpointpicker

import (
	"errors"
	"io"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/status"
)

// Process handles one request of a gateway and the response to it.
func (s *Server) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	stop := make(chan struct{})
	defer close(stop)
	incoming := receive(stream, stop)
	deadline := time.NewTimer(s.config.Deadline)
	defer deadline.Stop()

	x := exchange{server: s, view: s.view.Load()}
	defer x.release()
	for {
		var out []*extproc.ProcessingResponse
		select {
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-deadline.C:
			if x.phase == passing {
				continue // a response may take as long as it likes
			}
			out = x.refuse(refuseLate())
		case in := <-incoming:
			if errors.Is(in.err, io.EOF) {
				return nil
			} else if in.err != nil {
				return in.err
			}
			var err error
			if out, err = x.step(in.request); err != nil {
				return err
			}
		}
		for _, m := range out {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		switch x.phase {
		case refused:
			return nil
		case passing:
			x.release() // what was held has been sent
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
