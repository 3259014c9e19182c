package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// errNoMemory refuses a body that is not wrong.
var errNoMemory = errors.New("the memory for request bodies is in use")

// readBody reads a request's body of at most so many bytes into memory that it takes from the share. If it
// returns false it has answered the request, or answerUnanswered does.
func (srv *Server) readBody(w http.ResponseWriter, r *http.Request, memory *httpserver.Share, most int64) ([]byte, bool) {
	b, err := srv.readAll(w, r, memory, most)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return b, true
	case errors.As(err, &large):
		writeProblem(w, openai.Problem{Status: http.StatusRequestEntityTooLarge,
			Message: "the request body has more than " + strconv.FormatInt(most, 10) + " bytes"})
	case err == errNoMemory:
		refuseForMemory(w)
	case errors.Is(context.Cause(r.Context()), errStopping): // see answerUnanswered
	case errors.Is(err, os.ErrDeadlineExceeded):
		writeProblem(w, openai.Problem{Status: http.StatusRequestTimeout, Message: fmt.Sprintf("the request body arrived too slowly: it must bring %d bytes in every %v, or end, and be whole after %v",
			httpserver.BytesAt(srv.cfg.BodyRate), time.Duration(httpserver.Window), srv.cfg.BodyTimeout)})
	default:
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body was cut: " + err.Error()})
	}
	return nil, false
}

func refuseForMemory(w http.ResponseWriter) {
	refuseRequest(w, "the replica holds as many request bodies as it has memory for; send the request to another one")
}

// readAll reads a body, whose declared size is −1 for unknown. It allocates for what
// arrives, not for what is declared, and not before the share has grown.
func (srv *Server) readAll(w http.ResponseWriter, r *http.Request, memory *httpserver.Share, most int64) ([]byte, error) {
	if r.ContentLength == 0 {
		return nil, nil
	}
	if r.ContentLength > most {
		return nil, &http.MaxBytesError{Limit: most}
	}
	control, begun := http.NewResponseController(w), time.Now()
	pace := httpserver.Pace{Least: httpserver.BytesAt(srv.cfg.BodyRate)}
	stop := func() { control.SetReadDeadline(time.Unix(1, 0)) }
	setDeadline := func(at int64) { // fails only on servers that have a deadline of their own
		control.SetReadDeadline(begun.Add(min(time.Duration(at), srv.cfg.BodyTimeout)))
		if r.Context().Err() != nil {
			stop() // again: it may have run before this deadline
		}
	}
	setDeadline(httpserver.Window)
	defer control.SetReadDeadline(time.Time{})
	defer afterFunc(r.Context(), stop)()

	src := http.MaxBytesReader(w, r.Body, most)
	if r.ContentLength > 0 {
		most = r.ContentLength
	}
	var b []byte
	for {
		if len(b) == cap(b) {
			size := min(max(2*int64(cap(b)), 4<<10), most+1) // one byte more, to see the end
			if !memory.Resize(size) {
				return nil, errNoMemory
			}
			grown := make([]byte, len(b), size)
			copy(grown, b)
			b = grown
		}
		n, err := src.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		}
		if at, later := pace.Arrived(n, int64(time.Since(begun))); later {
			setDeadline(at)
		}
	}
}

// afterFunc is context.AfterFunc, but stop waits for f if it has begun: f may use a
// ResponseWriter, which is not valid once its handler has returned.
func afterFunc(ctx context.Context, f func()) (stop func()) {
	ended := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(ended)
		f()
	})
	return func() {
		if !stopped() {
			<-ended
		}
	}
}

// headerSize returns about how much memory a request's header takes.
func headerSize(h http.Header) (n int64) {
	for name, values := range h {
		n += int64(len(name))
		for _, v := range values {
			n += int64(len(v))
		}
	}
	return n
}
