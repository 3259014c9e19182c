package server

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// stream is one guarded stream. The server behind it receives in one goroutine
// and sends in another.
type stream struct {
	grpc.ServerStream
	server *Server
	typ    string // of the service; "" for all
	timer  *time.Timer
	over   chan struct{} // capacity 1: time is over
	owed   atomic.Int64  // responses that the client has not replied to

	mu    sync.Mutex
	why   error // why the stream was ended from here; nil if it was not
	ended bool
	id    string
	node  *node // nil until the first request
	names names
	// counted are the names that the node's account knows of.
	counted size
}

// guard puts a stream's handler behind the guards.
func (s *Server) guard(typ string, handler grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) error {
		g := &stream{ServerStream: ss, server: s, typ: typ, over: make(chan struct{}, 1), names: make(names)}
		g.timer = time.AfterFunc(s.cfg.Limits.Greeting, g.expire)
		defer g.timer.Stop()
		// The handler may wait for the client in a place that only the end of
		// the stream reaches, and that is when this function returns.
		done := make(chan error, 1)
		go func() {
			err := handler(srv, g)
			g.leave()
			done <- err
		}()
		var err error
		select {
		case err = <-done:
		case <-g.over:
		}
		if why := g.reason(); why != nil {
			return why
		}
		return err
	}
}

// RecvMsg gives the server the next request that passes the guards.
func (g *stream) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := g.check(m); err != nil {
		return g.refuse(err)
	}
	return nil
}

// SendMsg sends a response, and ends the stream of a client that does not read.
func (g *stream) SendMsg(m any) error {
	g.owed.Add(1)
	g.timer.Reset(g.server.cfg.Limits.Send)
	err := g.ServerStream.SendMsg(m)
	g.timer.Stop()
	return err
}

// expire ends a stream whose time for what it waits for is over.
func (g *stream) expire() {
	g.mu.Lock()
	what := "no request came in time"
	if g.node != nil {
		what = "the client does not read its responses"
	}
	g.mu.Unlock()
	_ = g.refuse(status.Error(codes.DeadlineExceeded, what))
	select {
	case g.over <- struct{}{}:
	default: // again, after the end
	}
}

// refuse notes why the stream ends, if that is from here, and returns it.
func (g *stream) refuse(why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.why == nil && !g.ended {
		g.why = why
		address := ""
		if p, ok := peer.FromContext(g.Context()); ok {
			address = p.Addr.String()
		}
		who := g.id
		if who == "" {
			who = address
			if host, _, err := net.SplitHostPort(address); err == nil {
				who = host
			}
		}
		g.server.refused.note(who, address, why)
	}
	return why
}

func (g *stream) reason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.why
}

// leave gives back what the stream took of its node's limits.
func (g *stream) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	if g.node != nil {
		g.node.leave(g.counted, time.Now())
	}
}
