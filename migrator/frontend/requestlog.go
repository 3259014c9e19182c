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
	if id := h.Get("X-Request-Id"); id != "" {
		return srv.log.With("request_id", id[:min(len(id), maxLoggedID)])
	}
	return srv.log
}

// log returns the logger for lines about the stream. Its id is the request's name in the
// logs of all migrators.
func (s *Stream) log() *slog.Logger { return s.server.requestLog(s.header).With("request", s.id) }
