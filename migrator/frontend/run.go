package frontend

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Run serves until ctx ends, which cuts all streams, or until the front is
// drained or has retired. It watches the engine and keeps the load up to date.
// Its error says that a listener is broken; a clean end is nil.
func (srv *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	var probes sync.WaitGroup
	d := newListeners(srv)
	defer func() {
		stop(errStopping)
		d.close(ctx)
		probes.Wait()
		srv.local.CloseIdleConnections()
		if t, ok := srv.peers.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}()
	if srv.cfg.PeerListener != nil {
		d.serve(ctx, srv.cfg.PeerListener, srv.PeerHandler())
	}
	sweep := time.NewTicker(updateInterval)
	defer sweep.Stop()
	look := time.NewTimer(0)
	defer look.Stop()

	health := make(chan error)
	looking, failures, tokens := false, 0, uint64(0)
	var away time.Time                     // since when the engine does not answer for its health
	drain, retire := srv.drain, srv.retire // nil once they were heard
	var last, deadline <-chan time.Time
	var left <-chan struct{} // closed when the servers are empty, then nil
	leaving := false         // the front drains or has retired
	leave := func() {
		drain, retire = nil, nil
		if leaving {
			return
		}
		leaving = true
		d.shutClients(ctx)
		deadline, left = time.After(srv.cfg.DrainTimeout), d.drained()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.failed:
			return err
		case <-sweep.C:
			srv.tracker.Update()
			srv.updateLoadHeader()
		case <-drain:
			srv.log.Info("draining")
			leave()
		case <-retire:
			srv.log.Info("retired")
			// A connection that is in use is given up by its client before it is
			// closed, and so nothing that is on its way is lost with it.
			retire, last = nil, time.After(retireGrace)
		case <-last:
			leave()
		case <-left:
			left = nil
			if srv.isIdle() {
				return nil
			}
		case <-srv.idle:
			if leaving && left == nil && srv.isIdle() {
				return nil
			}
		case <-deadline:
			srv.log.Warn("the drain's time is over; the remaining streams are cut")
			return nil
		case <-srv.probeRequested:
			if !srv.ready.Load() {
				d.shutClients(ctx) // a refused connection needs no second look
			}
			look.Reset(0)
		case <-look.C:
			if looking {
				continue
			}
			looking, tokens = true, srv.tokensRead.Load()
			probes.Go(func() {
				err := srv.probeEngine(ctx)
				select {
				case health <- err:
				case <-ctx.Done():
				}
			})
		case err := <-health:
			looking = false
			if err == nil {
				failures = 0
				if !srv.setReady(true) {
					srv.log.Info("the engine is ready")
				}
				if !leaving && !srv.retiring() {
					d.openClients(ctx)
				}
				look.Reset(srv.cfg.HealthInterval)
				continue
			}
			dead, slow := errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, context.DeadlineExceeded)
			if slow && srv.tokensRead.Load() != tokens {
				look.Reset(healthRetry)
				continue // it does not answer, and works
			}
			failures++
			if failures >= 2 || dead || !srv.ready.Load() {
				if srv.setReady(false) || d.clients != nil {
					srv.log.Warn("the engine is away; new requests are refused", "error", err)
					away = time.Now()
				}
				// One that says that it is not well, or is not there, is believed; one
				// that says nothing may be busy.
				if !slow || time.Since(away) > srv.cfg.HangTimeout {
					srv.evacuate()
				}
				srv.templates.clear() // the next engine may be another one
				srv.fingerprint.Store(nil)
				d.shutClients(ctx)
			}
			look.Reset(healthRetry)
		}
	}
}

// probeEngine asks the engine for its health.
func (srv *Server) probeEngine(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.HealthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.engine.JoinPath("/health").String(), nil)
	if err != nil {
		return err
	}
	// On a connection of its own: an old one may outlive the engine's will to
	// take new ones.
	req.Close = true
	resp, err := srv.probe.RoundTrip(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the engine's /health answers %s", resp.Status)
	}
	return nil
}
