package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
)

// discardLog discards what net/http would log: clients that leave are normal, and
// the rest is logged where its meaning is known.
var discardLog = log.New(io.Discard, "", 0)

// errStopping is why streams are cut when Run ends before they do.
var errStopping = errors.New("the server is stopping")

// closeGrace is how long handlers have to write an error event to the clients of
// streams that are cut.
const closeGrace = time.Second

// listeners are the server's HTTP servers.
//
// Clients must find out by themselves that the engine is away. So the listener is
// closed, and new connections are refused. The HTTP server is shut down, which
// sends GOAWAY on HTTP/2 connections and closes idle HTTP/1.1 ones: streams that
// the proxy had in flight are refused in HTTP/2's terms and retried elsewhere,
// and running ones go on. An http.Server cannot be opened again, so each opening
// has its own.
type listeners struct {
	server  *Server
	address net.Addr // of the clients' listener, nil for none

	opening  sync.Mutex   // guards the next three
	listener net.Listener // open and not yet served, nil for none
	clients  *http.Server // accepts clients; nil while shut
	left     bool         // clients are not accepted any more

	failed   chan error     // holds the error of a listener
	leaving  sync.WaitGroup // servers whose requests finish
	wg       sync.WaitGroup // goroutines that end when the servers are closed
	inFlight *inFlight      // requests at the servers

	fromClients, fromPeers httpserver.Connections

	mu      sync.Mutex
	servers map[*http.Server]struct{} // that may have connections
}

func newListeners(f *Server) *listeners {
	ls := &listeners{server: f, listener: f.cfg.Listener, failed: make(chan error, 1), servers: make(map[*http.Server]struct{}), inFlight: newInFlight()}
	ls.fromClients.Idle, ls.fromPeers.Idle = clientIdleConn, clientIdleConn
	if ls.listener != nil {
		ls.address = ls.listener.Addr()
	}
	return ls
}

// serve starts an HTTP server on l; its requests end when ctx does.
func (ls *listeners) serve(ctx context.Context, l net.Listener, open *httpserver.Connections, h http.Handler) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true) // on a listener with TLS that offers it
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{
		ConnContext:                  httpserver.ConnContext,
		DisableGeneralOptionsHandler: true, // OPTIONS * passes the gate as any other request
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ls.inFlight.begin()
			defer ls.inFlight.end()
			h.ServeHTTP(w, r)
		}),
		Protocols:         &protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: ls.server.cfg.WriteTimeout},
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       clientIdleConn,
		ConnState:         open.Track,
		MaxHeaderBytes:    maxHeader,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          discardLog,
	}
	ls.mu.Lock()
	ls.servers[s] = struct{}{}
	ls.mu.Unlock()
	ls.wg.Go(func() {
		// A listener that its owner closes was handed over.
		if err := s.Serve(open.Listener(l)); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			select {
			case ls.failed <- fmt.Errorf("frontend of %s: serve %s: %w", ls.server.cfg.Replica, l.Addr(), err):
			default:
			}
		}
	})
	return s
}

// listenClients opens the clients' address, where they wait until acceptClients. It returns false if the
// address is in use: the next call tries again. A server that leaves opens none.
func (ls *listeners) listenClients() bool {
	ls.opening.Lock()
	defer ls.opening.Unlock()
	if !ls.wantsClients() || ls.listener != nil {
		return true
	}
	l, err := ls.server.cfg.Listen(ls.address.Network(), ls.address.String())
	if err != nil {
		ls.server.log.Error("listen failed; retrying with the next health check", "address", ls.address.String(), "error", err)
		return false
	}
	ls.listener = l
	return true
}

// acceptClients accepts clients at the address that listenClients has opened.
func (ls *listeners) acceptClients(ctx context.Context) {
	ls.opening.Lock()
	defer ls.opening.Unlock()
	if ls.wantsClients() && ls.listener != nil {
		ls.clients, ls.listener = ls.serve(ctx, ls.listener, &ls.fromClients, ls.server.Handler()), nil
	}
}

func (ls *listeners) wantsClients() bool {
	return ls.clients == nil && ls.address != nil && !ls.left && !ls.server.retiring()
}

// shutClients stops accepting clients; requests in progress go on.
func (ls *listeners) shutClients(ctx context.Context) {
	ls.opening.Lock()
	defer ls.opening.Unlock()
	if ls.listener != nil {
		ls.listener.Close()
		ls.listener = nil
	}
	if ls.clients == nil {
		return
	}
	s := ls.clients
	ls.clients = nil
	ls.leaving.Go(func() {
		if s.Shutdown(ctx) == nil {
			ls.mu.Lock()
			defer ls.mu.Unlock()
			delete(ls.servers, s)
		}
	})
}

// leave stops accepting clients for good.
func (ls *listeners) leave(ctx context.Context) {
	ls.opening.Lock()
	ls.left = true
	ls.opening.Unlock()
	ls.shutClients(ctx)
}

// drained returns a channel that is closed when no server that was shut has a
// connection left, so that the last bytes of each answer are sent.
func (ls *listeners) drained() <-chan struct{} {
	done := make(chan struct{})
	ls.wg.Go(func() {
		ls.leaving.Wait()
		close(done)
	})
	return done
}

// close ends all servers after the requests' context has ended. For closeGrace
// the handlers can write error events and the servers can send them; then the
// connections are closed. Of ctx it uses the values only.
func (ls *listeners) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	ls.inFlight.wait(ctx.Done())
	ls.leaving.Wait() // returns: their context has ended
	for s := range ls.servers {
		s.Shutdown(ctx)
		s.Close()
	}
	if ls.listener != nil {
		ls.listener.Close()
	}
	ls.inFlight.wait(nil)
	ls.wg.Wait()
}
