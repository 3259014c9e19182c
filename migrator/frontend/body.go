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

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// readBody reads a request's body. If it returns false it has answered the
// request.
func (srv *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	tooLarge := openai.Problem{Status: http.StatusRequestEntityTooLarge,
		Message: "the request body has more than " + strconv.FormatInt(srv.cfg.MaxBody, 10) + " bytes"}
	if r.ContentLength > srv.cfg.MaxBody {
		writeProblem(w, tooLarge)
		return nil, false
	}
	control := http.NewResponseController(w)
	control.SetReadDeadline(time.Now().Add(srv.cfg.BodyTimeout)) // fails only on servers that have a deadline of their own
	defer control.SetReadDeadline(time.Time{})
	defer afterFunc(r.Context(), func() { control.SetReadDeadline(time.Unix(1, 0)) })()
	b, err := readSized(http.MaxBytesReader(w, r.Body, srv.cfg.MaxBody), r.ContentLength)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		return b, true
	case errors.As(err, &large):
		writeProblem(w, tooLarge)
	case errors.Is(context.Cause(r.Context()), errStopping): // see answerUnanswered
	case errors.Is(err, os.ErrDeadlineExceeded):
		writeProblem(w, openai.Problem{Status: http.StatusRequestTimeout, Message: fmt.Sprintf("the request body did not arrive within %v", srv.cfg.BodyTimeout)})
	default:
		writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body was cut: " + err.Error()})
	}
	return nil, false
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

// readSized reads a body of a declared size, −1 for unknown. It allocates for
// what arrives, not for what is declared.
func readSized(src io.Reader, size int64) ([]byte, error) {
	const atOnce = 1 << 20
	b := make([]byte, 0, min(max(size, 512), atOnce)+1) // one byte more than the size, to see the end
	for {
		n, err := src.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		case len(b) == cap(b):
			grown := make([]byte, len(b), 2*cap(b))
			copy(grown, b)
			b = grown
		}
	}
}
