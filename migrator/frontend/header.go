package frontend

import (
	"net/http"
	"strings"

	"github.com/cascadeinfer/cascade/policies/length"
)

// hop are the header fields that belong to one connection (RFC 9110, section
// 7.6.1), and those that the client side of net/http sets itself.
var hop = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, "Expect": true, "Accept-Encoding": true, "Host": true,
}

// toEngine returns the fields of a client's request that an engine may see.
func toEngine(h http.Header) http.Header { return without(h, length.Control) }

// toPeer returns the fields of a client's request that a peer may see: the
// estimate too, which the peer counts by.
func toPeer(h http.Header) http.Header {
	return without(h, func(name string) bool { return length.Control(name) && name != length.TokensHeader })
}

// toLater returns the fields for a leg that is not the client's first: no
// estimate, and no name that the first leg's engine may still have in use.
func toLater(h http.Header) http.Header {
	return without(h, func(name string) bool { return length.Control(name) || name == "x-request-id" })
}

func without(h http.Header, drop func(lower string) bool) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if hop[name] || drop(strings.ToLower(name)) {
			continue
		}
		out[name] = values
	}
	declared(h, func(name string) { delete(out, name) })
	return out
}

// toClient copies the fields of an engine's answer that a client may see into
// the front's own.
func toClient(w http.ResponseWriter, h http.Header) {
	dst := w.Header()
	for name, values := range h {
		if lower := strings.ToLower(name); !hop[name] && !length.Control(lower) && !toldByEngines[lower] { // an engine speaks for itself only
			dst[name] = values
		}
	}
	declared(h, func(name string) { delete(dst, name) })
}

// declared calls do for the fields that the sender declares to be for one
// connection only.
func declared(h http.Header, do func(name string)) {
	for _, names := range h["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			do(http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
}
