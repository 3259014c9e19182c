package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/xds/resources"
)

// bindRetry is the delay before another attempt to bind an address.
const bindRetry = time.Second

// closeGrace is how long requests that are ended have for their answers.
const closeGrace = time.Second

// A retired proxy ends once it has had no request at quietChecks checks in succession, and no HTTP/1 connection is
// left (httpserver.Connections.HTTP1) or none was used at idleChecks checks: then it closes those connections.
//
// The checks are counted, and not the time: a process that the machine does not let
// run sees no requests either, although they have arrived.
const (
	quietChecks = 10
	idleChecks  = 1200
	quietPeriod = 500 * time.Millisecond
)

// errStopping ends the requests that outlive the drain timeout.
var errStopping = errors.New("the proxy is stopping")

// connectionIdle ends a connection without requests: Envoy's default.
const connectionIdle = time.Hour

// maxHeaderBytes bounds the headers of a request: Envoy's default.
const maxHeaderBytes = 60 << 10

// listen serves the plan's address, or Config.Listener, from the first plan on until ctx ends, and
// then drains. After Retire it returns when no request is left.
func (p *Proxy) listen(ctx context.Context) {
	if p.cfg.Listener != nil {
		defer p.cfg.Listener.Close()
	}
	s := p.bind(ctx)
	if s == nil {
		return
	}
	close(p.ready)
	select {
	case <-ctx.Done():
	case <-p.retire:
		p.awaitQuiet(ctx, s.connections.HTTP1)
	}
	p.addr.Store(nil)
	p.drain(ctx, s)
}

// bind waits for a plan that can be served, and serves it. It returns nil if ctx ends before, or if
// another process has taken over.
func (p *Proxy) bind(ctx context.Context) *clientServer {
	select {
	case <-p.applied:
	case <-p.retire:
		return nil
	case <-ctx.Done():
		return nil
	}
	for warned := false; ; {
		settings := &p.state.Load().plan.Proxy
		bound, err := p.cfg.Listener, error(nil)
		switch {
		case settings.EdgeTLS && p.cfg.TLS == nil:
			err = errors.New("the plan asks for TLS with clients, and this proxy has no certificate")
		case bound == nil:
			bound, err = p.cfg.Listen("tcp", settings.Listen)
		}
		if err == nil {
			address := bound.Addr()
			p.addr.Store(&address)
			p.cfg.Logger.Info("listener started", "address", address.String())
			return p.start(settings.EdgeTLS, bound)
		}
		if !warned {
			p.cfg.Logger.Error("clients are not served, trying again", "address", settings.Listen, "error", err,
				"retry_in", bindRetry)
			warned = true
		}
		retry := time.NewTimer(bindRetry)
		select {
		case <-retry.C:
		case <-p.retire:
			return nil
		case <-ctx.Done():
			retry.Stop()
			return nil
		}
	}
}

// clientServer is the HTTP server for clients.
type clientServer struct {
	http        *http.Server
	connections *httpserver.Connections
	stop        context.CancelCauseFunc
	ended       chan struct{}
}

// start serves a listener, with TLS if it is secure.
func (p *Proxy) start(secure bool, bound net.Listener) *clientServer {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(!secure)
	protocols.SetHTTP2(secure)
	ctx, stop := context.WithCancelCause(context.Background())
	connections := &httpserver.Connections{Idle: connectionIdle}
	s := &clientServer{connections: connections, stop: stop, ended: make(chan struct{}), http: &http.Server{
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		Handler:                      httpserver.Handler(http.HandlerFunc(p.serve)),
		Protocols:                    protocols,
		ConnContext:                  httpserver.ConnContext,
		DisableGeneralOptionsHandler: true, // OPTIONS * is answered as any other request
		ReadHeaderTimeout:            resources.HeadersTimeout,
		IdleTimeout:                  connectionIdle,
		ConnState:                    connections.Track,
		MaxHeaderBytes:               maxHeaderBytes,
		ErrorLog:                     slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: resources.ClientStreams, MaxReceiveBufferPerStream: resources.ClientBuffer,
			MaxReceiveBufferPerConnection: resources.ClientWindow,
		},
	}}
	serve := s.http.Serve
	if secure {
		s.http.TLSConfig = p.cfg.TLS.Clone()
		serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
	}
	if p.cfg.WrapListener != nil {
		bound = p.cfg.WrapListener(bound)
	}
	go func() {
		defer close(s.ended)
		if err := serve(connections.Listener(bound)); !errors.Is(err, http.ErrServerClosed) {
			p.cfg.Logger.Error("listener failed", "error", err)
		}
	}()
	return s
}

// awaitQuiet returns when no request was in progress or began at quietChecks checks in succession and http1 is 0, at
// idleChecks checks, or when ctx ends.
func (p *Proxy) awaitQuiet(ctx context.Context, http1 func() int) {
	tick := time.NewTicker(quietPeriod)
	defer tick.Stop()
	begun := p.begun.Load()
	for quiet := 0; quiet < quietChecks || quiet < idleChecks && http1() > 0; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			quiet++
			if now := p.begun.Load(); p.active.Load() > 0 || now != begun {
				quiet, begun = 0, now
			}
		}
	}
}

// drain stops accepting and waits for the streams. What remains after the drain timeout,
// which begins when ctx ends, is ended: a request without an answer is refused, and a
// stream is cut.
func (p *Proxy) drain(ctx context.Context, s *clientServer) {
	defer s.stop(nil)
	if s.http.Shutdown(ctx) == nil {
		<-s.ended
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.DrainTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		p.cfg.Logger.Warn("streams cut at the end of the drain timeout", "timeout", p.cfg.DrainTimeout)
		s.stop(errStopping)
		grace, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		_ = s.http.Shutdown(grace) // what is left is closed
		s.http.Close()
	}
	<-s.ended
}
