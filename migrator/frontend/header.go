package frontend

import (
	"net/http"
	"strings"

	"github.com/cascadeinfer/cascade/policies/length"
)

// hopByHop are the header fields of a single connection (RFC 9110, section
// 7.6.1), and those that the client side of net/http sets itself.
var hopByHop = map[string]bool{
	"Connection": true, "Proxy-Connection": true, "Keep-Alive": true, "Proxy-Authenticate": true, "Proxy-Authorization": true,
	"Te": true, "Trailer": true, "Transfer-Encoding": true, "Upgrade": true,
	"Content-Length": true, "Expect": true, "Accept-Encoding": true, "Host": true,
}

// engineHeaders returns the fields of a client's request that an engine may see.
func engineHeaders(h http.Header) http.Header { return withoutHeaders(h, length.IsControlHeader) }

// peerHeaders returns the fields of a client's request that a peer may see. The
// estimate is one of them: the peer counts the request by it.
func peerHeaders(h http.Header) http.Header {
	return withoutHeaders(h, func(name string) bool { return length.IsControlHeader(name) && name != length.TokensHeader })
}

// resumeHeaders returns the fields for a leg that is not the client's first:
// without the estimate, and without x-request-id, which the first leg's engine
// may still have in use.
func resumeHeaders(h http.Header) http.Header {
	return withoutHeaders(h, func(name string) bool { return length.IsControlHeader(name) || name == "x-request-id" })
}

func withoutHeaders(h http.Header, drop func(lower string) bool) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if hopByHop[name] || drop(strings.ToLower(name)) {
			continue
		}
		out[name] = values
	}
	eachConnectionHeader(h, func(name string) { delete(out, name) })
	return out
}

// copyToClient copies the fields of an engine's answer that a client may see into
// the answer to the client.
func copyToClient(w http.ResponseWriter, h http.Header) {
	dst := w.Header()
	for name, values := range h {
		if lower := strings.ToLower(name); !hopByHop[name] && !length.IsControlHeader(lower) && !loadHeaders[lower] { // of the load the front end reports itself
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
