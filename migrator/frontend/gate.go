package frontend

import (
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/publicapi"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
)

// route is a request that a listener serves.
type route struct {
	publicapi.Endpoint
	// always is true if it is served whatever the state of the replica.
	always bool
	serve  handler
}

// handler answers a request whose body has been read: r has none. The body's memory goes
// back when the handler returns, or earlier if the handler gives it back.
type handler func(w http.ResponseWriter, r *http.Request, body []byte, memory *httpserver.Share)

// gate is the only way into a server: it serves the routes that it lists and no others,
// refuses bodies where none belongs, and reads every other body before its handler runs.
// So no handler waits for a client, and what an engine gets has passed one place.
type gate struct {
	server *Server
	routes []route
	bodies *httpserver.Budget // of the memory of all requests that pass
	most   int64              // bytes of a body
	// received counts the requests that arrive, those of always served routes excluded.
	received *atomic.Uint64
}

// ServeHTTP implements http.Handler. After Retire it asks the client of each answer to use another connection.
func (g gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.server.retiring() {
		w.Header().Set("Connection", "close") // over HTTP/2 this is a GOAWAY
	}
	to, problem := findRoute(g.routes, r)
	if !to.always {
		g.received.Add(1)
	}
	switch {
	case problem != nil:
		if problem.Status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", strings.Join(methodsOf(g.routes, r.URL.Path), ", "))
		}
		writeProblem(w, *problem)
	case to.always:
		to.serve(w, r, nil, nil)
	default:
		g.server.withSpan(w, r, r.Method+" "+to.Path, func(w http.ResponseWriter, r *http.Request) { g.serveAdmitted(w, r, to) })
	}
}

// findRoute returns the route of a request, or why there is none.
func findRoute(routes []route, r *http.Request) (route, *openai.Problem) {
	at := r.URL.Path
	known := false
	for _, to := range routes {
		if !to.Covers(at) {
			continue
		}
		known = true
		if to.Method != r.Method { // which is case-sensitive (RFC 9110, section 9.1)
			continue
		}
		if !to.Body && r.ContentLength != 0 {
			return route{}, &openai.Problem{Status: http.StatusBadRequest, Message: r.Method + " " + at + " takes no body"}
		}
		return to, nil
	}
	if known {
		return route{}, &openai.Problem{Status: http.StatusMethodNotAllowed, Kind: "MethodNotAllowedError", Message: "method not served: " + r.Method + " " + at}
	}
	return route{}, &openai.Problem{Status: http.StatusNotFound, Kind: "NotFoundError", Message: "path not served: " + r.Method + " " + at}
}

// methodsOf returns the methods that are served for a path.
func methodsOf(routes []route, at string) (methods []string) {
	for _, to := range routes {
		if to.Covers(at) {
			methods = append(methods, to.Method)
		}
	}
	return methods
}

// serveAdmitted serves a request unless the engine is away, the server drains or the process
// has no resources left, and counts it.
func (g gate) serveAdmitted(w http.ResponseWriter, r *http.Request, to route) {
	srv := g.server
	srv.inFlight.begin()
	defer srv.inFlight.end()
	switch {
	case srv.draining():
		refuseRequest(w, "the replica is draining; send the request to another one")
		return
	case !srv.ready.Load():
		refuseRequest(w, "the replica's engine is away; send the request to another one")
		return
	case srv.cfg.Admit() != nil:
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close") // it holds a descriptor
		}
		refuseRequest(w, "the replica is out of resources; send the request to another one")
		return
	}
	header, memory := g.bodies.Share(), g.bodies.Share()
	defer header.Release()
	defer memory.Release()
	if !header.Resize(headerSize(r.Header)) {
		refuseForMemory(w)
		return
	}
	body, ok := srv.readBody(w, r, &memory, g.most)
	if !ok {
		return
	}
	r.Body, r.ContentLength, r.TransferEncoding, r.Trailer = http.NoBody, 0, nil, nil
	to.serve(w, r, body, &memory)
}

// clientRoutes returns what clients may ask for: the public API.
func (srv *Server) clientRoutes() []route {
	var routes []route
	for _, e := range publicapi.Endpoints() {
		to := route{Endpoint: e}
		switch {
		case e.Path == "/health":
			to.always, to.serve = true, srv.serveHealth
		case e.Path == openai.Completions.Path(), e.Path == openai.Chat.Path():
			to.serve = srv.serveGenerate
		case e.Path == "/v1/audio/transcriptions", e.Path == "/v1/audio/translations":
			to.serve = srv.passForm
		case e.Body:
			to.serve = srv.passJSON(e)
		default:
			to.serve = srv.pass
		}
		routes = append(routes, to)
	}
	return routes
}

// peerRoutes lists what other migrators may ask for besides their gRPC: legs, which
// always run on the own engine, so that a request is forwarded at most once.
func (srv *Server) peerRoutes() []route {
	return []route{
		{Endpoint: publicapi.Endpoint{Method: "POST", Path: openai.Completions.Path(), Body: true}, serve: srv.servePeerLeg},
		{Endpoint: publicapi.Endpoint{Method: "POST", Path: openai.Chat.Path(), Body: true}, serve: srv.servePeerLeg},
		{Endpoint: publicapi.Endpoint{Method: "POST", Path: detokenizePath, Body: true}, serve: srv.servePeerDetokenize},
	}
}
