package frontend

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/cascadeinfer/cascade/policies/length"
)

// hopByHop are the header fields of a single connection (RFC 9110, section
// 7.6.1), and those that the client side of net/http sets itself.
var hopByHop = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, "Expect": true, "Accept-Encoding": true, "Host": true,
}

// forEngines are the fields of a client's request that an engine may see: what it needs to
// read the body, to know the caller and to join its trace. Engines act on more fields than
// are documented: some have read the addresses of their peers from X-Request-Id, and
// from X-data-parallel-rank which of its processes serves the request.
var forEngines = [...]string{"Accept", "Authorization", "Content-Type", "Traceparent", "Tracestate", "User-Agent"}

const requestIDHeader = "X-Request-Id"

// engineHeaders returns the fields of a client's request that an engine may see.
func engineHeaders(h http.Header) http.Header {
	out := make(http.Header, len(forEngines)+2)
	for _, name := range forEngines {
		if values := h[name]; len(values) > 0 {
			out[name] = values[:1:1]
		}
	}
	eachConnectionHeader(h, func(name string) { delete(out, name) })
	return out
}

// peerHeaders returns the fields of a client's request that a peer may see. The
// estimate is one of them: the peer counts the request by it.
func peerHeaders(h http.Header) http.Header {
	out := engineHeaders(h)
	if n := h.Get(length.TokensHeader); n != "" {
		out.Set(length.TokensHeader, n)
	}
	return out
}

// setRequestID gives an engine's request an id of its own: clients choose none, because
// engines take their requests apart by it, and no two legs share one.
func setRequestID(h http.Header) {
	var id [16]byte
	rand.Read(id[:]) // never fails
	h[requestIDHeader] = []string{hex.EncodeToString(id[:])}
}

// addresses are the header fields that name another server. The servers that an engine knows are not for clients.
var addresses = map[string]bool{"Location": true, "Content-Location": true, "Refresh": true, "Alt-Svc": true}

// isWithheld reports whether a header field of an engine's answer is kept from clients: a control header
// between front ends and proxies, a load header, which the front end sets itself, or an address.
func isWithheld(name string) bool {
	lower := strings.ToLower(name)
	return length.IsControlHeader(lower) || loadHeaders[lower] || addresses[name]
}

// copyToClient copies the fields of an engine's answer that a client may see into
// the answer to the client.
func copyToClient(w http.ResponseWriter, h http.Header) {
	dst := w.Header()
	for name, values := range h {
		if !hopByHop[name] && !isWithheld(name) {
			dst[name] = values
		}
	}
	eachConnectionHeader(h, func(name string) { delete(dst, name) })
}

// eachConnectionHeader calls do for the fields that the sender declares to be for
// one connection only.
func eachConnectionHeader(h http.Header, do func(name string)) {
	for _, names := range h["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			do(http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
}

// loadHeader is the field in which an answer reports the replica's load to
// proxies, in ORCA's text format. They pass it to the control plane and remove
// it.
const loadHeader = "Endpoint-Load-Metrics"

// loadHeaders are the fields, in lower case, in which engines report their load.
// They are removed, because the engine may be that of another replica than the
// client's.
var loadHeaders = map[string]bool{
	"endpoint-load-metrics": true, "endpoint-load-metrics-bin": true, "endpoint-load-metrics-json": true,
}

// updateLoadHeader updates the load that answers report. The names are those of engines, so
// that engines with and without a front end can be compared.
func (srv *Server) updateLoadHeader() {
	l := srv.engineFacts.addLoad(srv.tracker.State().Load, time.Now())
	srv.updateCrowded(l)
	capacity := srv.engineFacts.capacity()
	if capacity <= 0 || !srv.ready.Load() {
		srv.loadHeader.Store(nil) // the load of an engine that is away is not low but unknown
		return
	}
	text := fmt.Sprintf("TEXT named_metrics.kv_cache_usage_perc=%.4f,named_metrics.num_requests_running=%d,named_metrics.num_requests_waiting=%d",
		min(float64(l.KV())/float64(capacity), 1), l.Running, l.Waiting)
	srv.loadHeader.Store(&text)
}

// withLoadHeaders counts the clients' requests and adds the latest load to every
// answer.
func (srv *Server) withLoadHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		srv.clientRequests.Add(1)
		defer srv.clientRequests.Add(-1)
		if text := srv.loadHeader.Load(); text != nil {
			w.Header().Set(loadHeader, *text)
		}
		next.ServeHTTP(w, r)
	})
}

// ClientRequests returns how many requests of this server's own clients are in
// progress, wherever they run and whether or not the server parses them: those
// that the proxies have in progress at this replica.
func (srv *Server) ClientRequests() int { return int(srv.clientRequests.Load()) }
