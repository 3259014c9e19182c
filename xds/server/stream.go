package server

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cascadeinfer/cascade/internal/wakeup"
)

// limitedStream is one stream with limits. The server behind it receives in one
// goroutine and sends in another.
type limitedStream struct {
	grpc.ServerStream
	server    *Server
	typ       string // of the service; "" for all
	timer     *time.Timer
	timedOut  chan struct{} // capacity 1: the timer has fired
	unreplied atomic.Int64  // responses that the client has not replied to

	mu            sync.Mutex
	endErr        error // why this package ended the stream; nil if it did not
	ended         bool
	id            string
	node          *nodeAccount // nil until the first request
	subscriptions subscriptions
	// counted is the part of subscriptions that the node's account includes.
	counted nameCount
}

// limit wraps a stream's handler with the limits.
func (s *Server) limit(typ string, handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		g := &limitedStream{ServerStream: ss, server: s, typ: typ, timedOut: make(chan struct{}, 1), subscriptions: make(subscriptions)}
		g.timer = time.AfterFunc(s.cfg.Limits.FirstRequestTimeout, g.onTimeout)
		defer g.timer.Stop()
		// The handler may be blocked on the client, and only the end of the
		// stream, which is the return of this function, unblocks it.
		done := make(chan error, 1)
		go func() {
			err := handler(srv, g)
			g.release()
			done <- err
		}()
		var err error
		select {
		case err = <-done:
		case <-g.timedOut:
		}
		if why := g.endReason(); why != nil {
			return why
		}
		return err
	}
}

// RecvMsg returns the next valid request to the server.
func (g *limitedStream) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := g.checkRequest(m); err != nil {
		return g.end(err)
	}
	return nil
}

// SendMsg sends a response, and ends the stream of a client that does not read.
func (g *limitedStream) SendMsg(m any) error {
	g.unreplied.Add(1)
	g.timer.Reset(g.server.cfg.Limits.SendTimeout)
	err := g.ServerStream.SendMsg(m)
	g.timer.Stop()
	return err
}

// onTimeout ends a stream whose client neither sent its first request nor read
// a response in time.
func (g *limitedStream) onTimeout() {
	g.mu.Lock()
	what := "no request within the time limit"
	if g.node != nil {
		what = "client does not read its responses"
	}
	g.mu.Unlock()
	_ = g.end(status.Error(codes.DeadlineExceeded, what))
	wakeup.Send(g.timedOut)
}

// end records and logs why this package ends the stream, unless it has ended,
// and returns the error.
func (g *limitedStream) end(why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.endErr == nil && !g.ended {
		g.endErr = why
		address := ""
		if p, ok := peer.FromContext(g.Context()); ok {
			address = p.Addr.String()
		}
		g.server.Record("xds stream refused", g.id, address, "", why)
	}
	return why
}

func (g *limitedStream) endReason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.endErr
}

// release gives back what the stream used of its node's limits.
func (g *limitedStream) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	if g.node != nil {
		g.node.removeStream(g.counted, time.Now())
	}
}
