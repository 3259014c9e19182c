package stream

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

// toClient returns the fields of an engine's answer that a client may see.
func toClient(h http.Header) http.Header { return without(h, func(string) bool { return false }) }

func without(h http.Header, drop func(lower string) bool) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if hop[name] || drop(strings.ToLower(name)) {
			continue
		}
		out[name] = values
	}
	// Fields that the sender declares to be for one connection only.
	for _, names := range h["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			delete(out, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	return out
}

// setHeader copies fields into an answer.
func setHeader(w http.ResponseWriter, h http.Header) {
	dst := w.Header()
	for name, values := range h {
		dst[name] = values
	}
}
