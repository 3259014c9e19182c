package frontend

import (
	"log/slog"
	"net/http"
)

// maxLoggedID bounds what a log line shows of a client's request id, in bytes.
const maxLoggedID = 128

// requestLog returns the logger for lines about a request. They carry the id that the
// proxy has given it, or its client, as the proxy's access log does.
func (srv *Server) requestLog(h http.Header) *slog.Logger {
	return withRequestID(srv.log, h.Get(requestIDHeader))
}

func withRequestID(log *slog.Logger, id string) *slog.Logger {
	if id == "" {
		return log
	}
	return log.With("request_id", id[:min(len(id), maxLoggedID)])
}

// log returns the logger for lines about the stream. Its id is the request's name in the
// logs of all migrators.
func (s *Stream) log() *slog.Logger {
	return withRequestID(s.server.log, s.requestID).With("request", s.id)
}
