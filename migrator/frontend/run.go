package frontend

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// Run serves until parent ends, which cuts all streams, or until the server is
// drained or retired. It probes the engine and keeps the load up to date. The
// error is that of a listener; a clean end returns nil.
func (srv *Server) Run(parent context.Context) error {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(parent))
	// So that clients whose streams are cut get an error event with this cause.
	defer context.AfterFunc(parent, func() { stop(errStopping) })()
	l := newListeners(srv)
	watch := newEngineWatch(srv, l)
	var loops sync.WaitGroup
	defer func() {
		stop(errStopping)
		loops.Wait()
		l.close(ctx)
		watch.workers.Wait()
		srv.local.CloseIdleConnections()
		if t, ok := srv.peers.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}()
	if srv.cfg.PeerListener != nil {
		l.serve(ctx, srv.cfg.PeerListener, &l.fromPeers, srv.PeerHandler())
	}
	left := make(chan struct{})
	loops.Go(func() { watch.run(ctx) })
	loops.Go(func() { defer close(left); srv.leave(ctx, l) })
	select {
	case <-ctx.Done():
		return nil
	case err := <-l.failed:
		return err
	case <-left:
		return nil
	}
}

// leave returns when the server was drained or retired and has answered what it had
// accepted, at the latest after DrainTimeout, or when ctx ends.
func (srv *Server) leave(ctx context.Context, l *listeners) {
	select {
	case <-srv.drain:
	case <-srv.retire:
		srv.log.Info("server retired")
		srv.awaitClients(ctx, l)
	case <-ctx.Done():
		return
	}
	if srv.draining() {
		srv.log.Info("drain started")
	}
	l.leave(ctx)
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.DrainTimeout)
	defer cancel()
	select {
	case <-l.drained():
		srv.inFlight.wait(ctx.Done())
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		srv.log.Warn("drain timed out; cutting the remaining streams")
	}
}

// awaitClients waits until the clients of a retired server have closed their HTTP/1 connections, which
// may bring another request until then; for clientIdleConn at most, or until the server drains.
func (srv *Server) awaitClients(ctx context.Context, l *listeners) {
	retired, tick := time.Now(), time.NewTicker(retireGrace)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if l.fromClients.HTTP1() == 0 || time.Since(retired) >= clientIdleConn {
				return
			}
		case <-srv.drain:
			return
		case <-ctx.Done():
			return
		}
	}
}
