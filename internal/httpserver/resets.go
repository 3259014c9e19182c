package httpserver

import (
	"context"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// A connection is closed if its client resets most requests right after sending them. The numbers are Envoy's.
const (
	prematureReset = time.Second // a reset before the answer, this soon after the request
	judgedRequests = 500         // a connection's requests before it is judged
)

// resetCounts counts the requests of one connection, and those that were reset at once.
type resetCounts struct{ requests, resets atomic.Int64 }

type resetCountsKey struct{}

// ConnContext is the http.Server.ConnContext of a server that uses Handler. With it, an HTTP/2 client
// that resets most of its requests at once gets a GOAWAY: its other requests go on, and it needs another
// connection for new ones.
func ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, resetCountsKey{}, new(resetCounts))
}

// countReset counts a request that has ended, and sends a GOAWAY if its connection has reset too many.
func (a *answer) countReset(r *http.Request, begun time.Time) {
	c, ok := r.Context().Value(resetCountsKey{}).(*resetCounts)
	if !ok || r.ProtoMajor == 1 {
		return
	}
	requests := c.requests.Add(1)
	if a.begun || r.Context().Err() == nil || time.Since(begun) > prematureReset {
		return
	}
	if resets := c.resets.Add(1); requests >= judgedRequests && 2*resets > requests {
		// net/http sends the GOAWAY for this header, also on a stream that was reset.
		a.Header().Set("Connection", "close")
		a.ResponseWriter.WriteHeader(http.StatusTooManyRequests)
		_ = a.control.Flush() // fails, because the stream was reset
	}
}
