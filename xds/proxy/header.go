package proxy

import (
	"net"
	"net/http"
	"strings"
)

// hopByHop reports whether a header concerns one connection and must not be forwarded
// (RFC 9110 §7.6.1). The proxy handles Expect by reading the body.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect":
		return true
	}
	return false
}

// upstreamHeader returns the request's header without those of the connection and those that
// only Cascade may set. It shares the values of the original, which it does not change.
func upstreamHeader(r *http.Request) http.Header {
	out := make(http.Header, len(r.Header)+6)
	for name, values := range r.Header {
		if !hopByHop(name) && !controlHeader(name) {
			out[name] = values
		}
	}
	for _, line := range r.Header["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			out.Del(strings.TrimSpace(name))
		}
	}
	for _, te := range r.Header["Te"] {
		if strings.EqualFold(strings.TrimSpace(te), "trailers") {
			out["Te"] = []string{"trailers"} // required by gRPC
		}
	}
	return out
}

// addForwardedHeaders adds the headers that describe the client.
func addForwardedHeaders(h http.Header, r *http.Request) {
	if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		if prior := strings.Join(h["X-Forwarded-For"], ", "); prior != "" {
			ip = prior + ", " + ip
		}
		h["X-Forwarded-For"] = []string{ip}
	}
	h["X-Forwarded-Proto"] = []string{"http"}
	if h["X-Request-Id"] == nil {
		h["X-Request-Id"] = []string{newRequestID()}
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // keeps net/http from adding its own
	}
}
