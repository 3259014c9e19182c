package frontend

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// withAnswer answers every request: by next, whose writes get a deadline, else as
// answerUnanswered does. No handler decides that for itself: with net/http, a handler that
// returns without writing sends 200 with an empty body.
func (srv *Server) withAnswer(timeout time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := newDeadlineWriter(w, timeout)
		defer func() {
			if g.end(r) {
				srv.unreadCut.Add(1)
				srv.requestLog(r.Header).Info("answer cut: its client read too slowly", "path", r.URL.Path, "bytes", g.bytes.Load())
			}
		}()
		next.ServeHTTP(g, r)
		if !g.written {
			srv.answerUnanswered(g, r)
		}
		g.FlushError() // here, because the server would flush without a deadline
	})
}

// answerUnanswered answers a request whose handler has returned without an answer,
// because the request has ended: another replica can serve it if this server ended it;
// if the client did, its connection or stream is cut.
func (srv *Server) answerUnanswered(w http.ResponseWriter, r *http.Request) {
	switch cause := context.Cause(r.Context()); {
	case cause == nil:
		srv.requestLog(r.Header).Error("internal error: request left unanswered", "method", r.Method, "path", r.URL.Path)
		writeProblem(w, openai.Problem{Status: http.StatusInternalServerError, Message: "internal error: the request was left unanswered; send it again"})
	case errors.Is(cause, errStopping):
		refuseRequest(w, "the replica is stopping; send the request to another one")
	default:
		panic(http.ErrAbortHandler)
	}
}
