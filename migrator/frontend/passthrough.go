package frontend

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httputil"
	"path"
	"strings"

	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/policies/length"
	"github.com/cascadeinfer/cascade/policies/localfault"
)

// relayResponse relays an answer that is not a stream as it is. It reads the
// engine's counts from it and, if learn is true, the template of such answers
// under key.
func (srv *Server) relayResponse(w http.ResponseWriter, b openedLeg, key templateKey, learn bool) {
	defer b.release()
	if b.local != nil {
		b.local.work.AddOutput(0)
		srv.brought.Add(1)
	}
	copyToClient(w, b.header)
	if size := b.response.Header.Get("Content-Length"); size != "" {
		w.Header().Set("Content-Length", size)
	}
	if b.local != nil && b.response.StatusCode == http.StatusServiceUnavailable {
		w.Header().Set(length.RefusedHeader, "1") // by RFC 9110, section 15.6.4, it is this server that is unavailable
	}
	w.WriteHeader(b.response.StatusCode)
	var seen bytes.Buffer
	_, err := io.Copy(w, io.TeeReader(b.response.Body, &prefixBuffer{&seen, maxInspected}))
	if err != nil {
		// The announced length is not reached, so the client sees that the answer
		// was cut.
		panic(http.ErrAbortHandler)
	}
	if b.response.StatusCode != http.StatusOK || seen.Len() >= maxInspected {
		return
	}
	b.recordUsage(seen.Bytes())
	if learn && b.local != nil {
		if err := srv.templates.learn(key, b.response.Header.Get("Content-Type"), seen.Bytes()); err != nil {
			srv.log.Warn("unstreamed answers cannot be assembled from streams; their requests cannot migrate", "endpoint", key.endpoint.Path(), "reason", err)
		}
	}
}

// prefixBuffer keeps the first bytes that are written to it and discards the
// rest.
type prefixBuffer struct {
	buf  *bytes.Buffer
	room int
}

func (l *prefixBuffer) Write(b []byte) (int, error) {
	n := min(len(b), l.room)
	l.buf.Write(b[:n])
	l.room -= n
	return len(b), nil
}

// relayEvents relays a stream that the front end did not ask for, as it is.
func (srv *Server) relayEvents(w http.ResponseWriter, b openedLeg) {
	defer b.leg.Close()
	out := &eventWriter{w: w, control: http.NewResponseController(w), header: b.header}
	for c, err := b.first, error(nil); ; c, err = b.leg.Next() {
		if err != nil {
			if err != io.EOF {
				out.fail(engineLostProblem(err))
			}
			return
		}
		if out.relay(c, openai.Edit{}) != nil {
			return
		}
	}
}

// passthroughPaths are the paths below which requests go to the engine without
// being parsed. Engines have more paths, for their operator: those that pause the
// engine, load into it or reach its memory stay closed to clients.
var passthroughPaths = []string{"/v1/models", "/v1/embeddings", "/v1/responses", "/v1/messages", "/v1/rerank", "/v1/score",
	"/v1/completions/render", "/v1/chat/completions/render", "/v1/audio",
	"/tokenize", "/detokenize", "/version", "/ping", "/load", "/metrics", "/rerank", "/score", "/pooling", "/classify"}

// formPaths are those of them that take a form instead of JSON.
var formPaths = []string{"/v1/audio/transcriptions", "/v1/audio/translations"}

// isBelow reports whether a path is one of roots or below one. A path with dot
// segments or empty ones is below none: the engine would resolve them, and they
// may be escaped, which http.ServeMux does not resolve.
func isBelow(roots []string, at string) bool {
	clean := path.Clean(at)
	if clean != at && clean+"/" != at {
		return false
	}
	for _, root := range roots {
		if at == root || strings.HasPrefix(at, root+"/") {
			return true
		}
	}
	return false
}

// passThrough passes a request to the engine without parsing it.
func (srv *Server) passThrough(w http.ResponseWriter, r *http.Request) {
	if !isBelow(passthroughPaths, r.URL.Path) {
		writeProblem(w, openai.Problem{Status: http.StatusNotFound, Kind: "NotFoundError", Message: "path not served: " + r.Method + " " + r.URL.Path})
		return
	}
	if r.Method == http.MethodPost {
		body, ok := srv.readBody(w, r)
		if !ok {
			return
		}
		// Engines accept as JSON what is not valid JSON (NaN, a byte order mark,
		// UTF-16), whatever Content-Type says. A body that cannot be parsed here
		// may hold a withheld field, so it is refused.
		if len(body) > 0 && !isBelow(formPaths, r.URL.Path) {
			req, err := openai.Parse(openai.Completions, body)
			if err != nil {
				writeProblem(w, openai.Problem{Status: http.StatusBadRequest, Message: "the request body is " + err.Error()})
				return
			}
			body = req.PlainBody()
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.TransferEncoding = nil
	}
	srv.passthrough.ServeHTTP(w, r)
}

func (srv *Server) newPassthrough() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport:     srv.local,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(srv.engine)
			p.Out.Header = engineHeaders(p.In.Header)
			p.Out.ContentLength = p.In.ContentLength
		},
		ModifyResponse: func(resp *http.Response) error {
			for name := range loadHeaders {
				resp.Header.Del(name)
			}
			resp.Body = newIdleBody(resp.Body, srv.cfg.IdleTimeout)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() != nil {
				return
			}
			if !localfault.Is(err) {
				srv.probeNow()
			}
			srv.refuseEngineFailure(w, err)
		},
		ErrorLog: discardLog,
	}
}
