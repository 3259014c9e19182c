package proxy

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies/httpserver"
)

// bindRetry is the delay before another attempt to bind an address.
const bindRetry = time.Second

// closeGrace is how long requests that are ended have for their answers.
const closeGrace = time.Second

// A retired proxy closes its connections once it has had no request at quietChecks
// checks in succession. Closing an idle HTTP/1.1 connection loses the request that its
// client sends at the same moment, and most requests of this API may not be sent twice
// by a client on its own. Clients under load reuse a connection within moments and are
// then asked to use another one, so that those which remain are not in use.
//
// The checks are counted, and not the time: a process that the machine does not let
// run sees no requests either, although they have arrived.
const (
	quietChecks = 10
	quietPeriod = 500 * time.Millisecond
)

// errStopping ends the requests that outlive the drain timeout.
var errStopping = errors.New("the proxy is stopping")

// server is a bound listener.
type server struct {
	http    *http.Server
	address string // from LDS
	secure  bool   // with TLS
	stop    context.CancelCauseFunc
	ended   chan struct{}
}

// serveListeners runs one server per listener of the state until ctx ends, and then
// drains all of them. After Retire it returns when no request is left.
func (p *Proxy) serveListeners(ctx context.Context) error {
	running := make(map[string]*server)
	var draining sync.WaitGroup
	drain := func(ctx context.Context, name string) {
		s := running[name]
		delete(running, name)
		p.setAddr(name, nil)
		draining.Go(func() { p.drain(ctx, s) })
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	stop := func(name string) { drain(now, name) }
	for serving := true; serving; {
		retry := p.reconcile(running, stop)
		select {
		case <-ctx.Done():
			serving = false
		case <-p.retire:
			// The successor has the sockets, so that no other listener is opened.
			p.awaitQuiet(ctx)
			serving = false
		case <-p.changed:
		case <-retry:
		}
	}
	for name := range running {
		drain(ctx, name)
	}
	draining.Wait()
	if p.cfg.Listener != nil {
		p.cfg.Listener.Close()
	}
	return nil
}

// awaitQuiet returns when no request was in progress or began at quietChecks checks in
// succession, or when ctx ends.
func (p *Proxy) awaitQuiet(ctx context.Context) {
	tick := time.NewTicker(quietPeriod)
	defer tick.Stop()
	begun := p.begun.Load()
	for quiet := 0; quiet < quietChecks; {
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

// reconcile starts and stops servers to match the state. The channel fires when an
// address should be tried again; it is nil if none should.
func (p *Proxy) reconcile(running map[string]*server, stop func(string)) (retry <-chan time.Time) {
	want := p.wantedListeners()
	for name, s := range running {
		if l := want[name]; l == nil || p.cfg.Listener == nil && (l.Address != s.address || (l.Secret != "") != s.secure) {
			stop(name)
		}
	}
	for name, l := range want {
		if running[name] != nil {
			continue
		}
		bound := p.cfg.Listener
		if bound == nil {
			var err error
			if bound, err = p.cfg.Listen("tcp", l.Address); err != nil {
				p.cfg.Logger.Error("listener not bound", "listener", name, "error", err, "retry_in", bindRetry)
				retry = time.After(bindRetry)
				continue
			}
		}
		running[name] = p.start(name, l, bound)
		p.setAddr(name, bound.Addr())
		p.cfg.Logger.Info("listener started", "listener", name, "address", bound.Addr().String())
	}
	if len(running) > 0 {
		p.once.Do(func() { close(p.ready) })
	}
	return retry
}

// wantedListeners returns the listeners to serve. Once a listener is served on
// Config.Listener, no other replaces it: http.Server closes the listener it has served.
func (p *Proxy) wantedListeners() map[string]*listener {
	out := make(map[string]*listener)
	for name, l := range p.state.Load().listeners {
		if l.Address == "" {
			continue
		}
		if l.Secret != "" && p.cfg.TLS == nil {
			p.noTLS.Do(func() {
				p.cfg.Logger.Error("listener not served: it needs TLS, and this proxy has no certificate", "listener", name)
			})
			continue
		}
		out[name] = l
	}
	if p.cfg.Listener == nil {
		return out
	}
	name := p.cfg.ListenerName
	if name == "" && len(out) > 0 {
		names := make([]string, 0, len(out))
		for n := range out {
			names = append(names, n)
		}
		name = slices.MinFunc(names, cmp.Compare[string])
	}
	if l := out[name]; l != nil {
		return map[string]*listener{name: l}
	}
	return nil
}

// start serves a listener. Settings that an HTTP server fixes at its start (connection
// timeouts, HTTP/2 windows and stream limits) stay until the listener's address
// changes; everything else follows the state.
func (p *Proxy) start(name string, l *listener, bound net.Listener) *server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	ctx, stop := context.WithCancelCause(context.Background())
	s := &server{address: l.Address, secure: l.Secret != "", stop: stop, ended: make(chan struct{}), http: &http.Server{
		BaseContext:                  func(net.Listener) context.Context { return ctx },
		Handler:                      httpserver.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(name, w, r) })),
		Protocols:                    protocols,
		DisableGeneralOptionsHandler: true, // OPTIONS * is routed as any other request
		ReadHeaderTimeout:            l.HeadersTimeout,
		IdleTimeout:                  l.ConnectionIdle,
		ConnState:                    markRequestRead,
		MaxHeaderBytes:               l.MaxHeaderBytes,
		ErrorLog:                     slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          int(min(l.MaxStreams, math.MaxInt32)),
			MaxReceiveBufferPerStream:     l.StreamWindow,
			MaxReceiveBufferPerConnection: l.ConnectionWindow,
		},
	}}
	serve := s.http.Serve
	if s.secure {
		protocols.SetUnencryptedHTTP2(false)
		protocols.SetHTTP2(true)
		s.http.TLSConfig = p.cfg.TLS.Clone()
		serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
	}
	go func() {
		defer close(s.ended)
		if p.cfg.WrapListener != nil {
			bound = p.cfg.WrapListener(bound)
		}
		if err := serve(lazyDeadlineListener{bound, l.ConnectionIdle}); !errors.Is(err, http.ErrServerClosed) {
			p.cfg.Logger.Error("listener failed", "listener", name, "error", err)
		}
	}()
	return s
}

// drain stops accepting and waits for the streams. What remains after the drain timeout,
// which begins when ctx ends, is ended: a request without an answer is refused, and a
// stream is cut.
func (p *Proxy) drain(ctx context.Context, s *server) {
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

func (p *Proxy) setAddr(name string, a net.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a == nil {
		delete(p.addrs, name)
		return
	}
	p.addrs[name] = a
}
