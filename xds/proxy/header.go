package proxy

import (
	"net"
	"net/http"
	"strings"

	"github.com/cascadeinfer/cascade/xds/client"
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

// upstreamHeader returns the request's header without connection headers and with the
// listener's early mutations applied. It shares the values of the original, which it
// does not change.
func upstreamHeader(r *http.Request, l *client.Listener) http.Header {
	out := make(http.Header, len(r.Header)+6)
	for name, values := range r.Header {
		if !hopByHop(name) && !removes(&l.Early, name) {
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
	add(out, l.Early.Add, client.FormatContext{})
	return out
}

// addForwardedHeaders adds the headers that describe the client.
func addForwardedHeaders(h http.Header, r *http.Request, l *client.Listener) {
	if l.ForwardedFor {
		if ip, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			if prior := strings.Join(h["X-Forwarded-For"], ", "); prior != "" {
				ip = prior + ", " + ip
			}
			h["X-Forwarded-For"] = []string{ip}
		}
		h["X-Forwarded-Proto"] = []string{"http"}
	} else if h["X-Forwarded-Proto"] == nil {
		h["X-Forwarded-Proto"] = []string{"http"}
	}
	if l.RequestID && h["X-Request-Id"] == nil {
		h["X-Request-Id"] = []string{newRequestID()}
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // keeps net/http from adding its own
	}
}

// removes reports whether the operations remove a header.
func removes(o *client.HeaderOps, name string) bool {
	for _, r := range o.Remove {
		if r == name {
			return true
		}
	}
	for _, p := range o.RemovePrefix {
		if len(name) >= len(p) && strings.EqualFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}

// mutate applies operations to a header.
func mutate(h http.Header, o *client.HeaderOps, c client.FormatContext) {
	if o.Empty() {
		return
	}
	for _, name := range o.Remove {
		delete(h, name)
	}
	if len(o.RemovePrefix) > 0 {
		for name := range h {
			if removes(o, name) {
				delete(h, name)
			}
		}
	}
	add(h, o.Add, c)
}

func add(h http.Header, adds []client.HeaderAdd, c client.FormatContext) {
	for i := range adds {
		a := &adds[i]
		_, there := h[a.Name]
		switch {
		case a.Action == client.AppendOrAdd && there:
			// A new slice: the values may be shared.
			h[a.Name] = append(append([]string(nil), h[a.Name]...), a.Value.Text(c))
		case a.Action == client.AppendOrAdd, a.Action == client.Overwrite,
			a.Action == client.AddIfAbsent && !there, a.Action == client.OverwriteIfExists && there:
			h[a.Name] = []string{a.Value.Text(c)}
		}
	}
}
