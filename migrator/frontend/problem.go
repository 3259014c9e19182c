package frontend

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/length"
)

// refuseRequest answers that another replica should serve the request: no token
// was produced, and proxies retry when they see the header.
func refuseRequest(w http.ResponseWriter, message string) {
	writeProblem(w, refusalProblem(message))
}

// refusalProblem returns the problem that refuseRequest answers with.
func refusalProblem(message string) openai.Problem {
	return openai.Problem{Status: http.StatusServiceUnavailable, Kind: "ServiceUnavailableError", Message: message}
}

// writeProblem writes a problem as the whole answer. One that says that this server is
// unavailable is a refusal.
func writeProblem(w http.ResponseWriter, p openai.Problem) {
	markRefusal(w.Header(), p.Status)
	if p.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	writeJSON(w, p.Status, p.Body())
}

// writeJSON writes a whole answer.
func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}

// markRefusal marks an answer of this server with status 503 for proxies, which then send
// the request to another replica. Answers of engines are marked by losses.
func markRefusal(h http.Header, status int) {
	if status == http.StatusServiceUnavailable {
		h.Set(length.RefusedHeader, length.RefusedUnbegun)
		h.Set("Retry-After", "1")
	}
}

var errConnectionLost = errors.New("its connection was lost")

// engineLostProblem returns the problem of a stream whose engine was lost.
func engineLostProblem(err error) openai.Problem {
	if errors.Is(err, errStopping) {
		return refusalProblem(err.Error() + "; send the request again")
	}
	if network := new(net.OpError); errors.As(err, &network) {
		err = errConnectionLost // without the addresses, which the log has
	}
	return openai.Problem{Status: http.StatusBadGateway, Kind: "EngineError",
		Message: "the engine's answer was cut: " + err.Error() + "; send the request again"}
}

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
		if g.status == 0 {
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
