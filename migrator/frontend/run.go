package frontend

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
)

// Run serves until parent ends, which cuts all streams, or until the server is
// drained or retired. It probes the engine and keeps the load up to date. The
// error is that of a listener; a clean end returns nil.
func (srv *Server) Run(parent context.Context) error {
	ctx, stop := context.WithCancelCause(context.WithoutCancel(parent))
	// So that clients whose streams are cut get an error event with this cause.
	defer context.AfterFunc(parent, func() { stop(errStopping) })()
	var probes, readers sync.WaitGroup
	l := newListeners(srv)
	defer func() {
		stop(errStopping)
		l.close(ctx)
		probes.Wait()
		readers.Wait()
		srv.local.CloseIdleConnections()
		if t, ok := srv.peers.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}()
	if srv.cfg.PeerListener != nil {
		l.serve(ctx, srv.cfg.PeerListener, &l.fromPeers, srv.PeerHandler())
	}
	sweep := time.NewTicker(updateInterval)
	defer sweep.Stop()
	probe := time.NewTimer(0)
	defer probe.Stop()

	health := make(chan probeResult)
	probing, failures := false, 0
	var brought, starvations uint64 // when the present health check began
	watch := newProgressWatch(srv)
	away := time.Now()                     // since when the engine has not been ready; zero while it is
	starting := true                       // the engine has not been ready yet, and the log has not named it
	drain, retire := srv.drain, srv.retire // nil once received
	var retireTimer, deadline <-chan time.Time
	var retired time.Time
	var drained <-chan struct{} // closed when the servers have no connections, then nil
	leaving := false            // the server drains or has retired
	leave := func() {
		drain, retire = nil, nil
		if leaving {
			return
		}
		leaving = true
		l.shutClients(ctx)
		deadline, drained = time.After(srv.cfg.DrainTimeout), l.drained()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-l.failed:
			return err
		case <-sweep.C:
			srv.checkReaders(&readers)
			srv.tracker.Update()
			srv.updateLoadHeader()
			srv.admission.setIteration(srv.tracker.Iteration())
			state := watch.check(time.Now())
			if state == engineinfo.Quiet || srv.ready.Load() && srv.engineState.due(time.Now()) {
				watch.sample(ctx, &probes)
			}
			if state == engineinfo.Hung && !srv.hung.Swap(true) {
				srv.hangs.Add(1)
				away = time.Now()
				srv.log.Warn("engine makes no progress; sending its requests to other replicas",
					"pause", watch.monitor.Pause(), "limit", watch.monitor.Limit())
				srv.setReady(false)
				l.shutClients(ctx)
				probe.Reset(0)
			}
			if srv.hung.Load() {
				srv.evacuate()
				if time.Since(away) > srv.cfg.HangTimeout {
					srv.cancelLegs(errNoProgress, func(*localLeg) bool { return true })
				}
			}
		case s := <-watch.samples:
			watch.handleSample(s)
			srv.handleMetrics(s, time.Now())
		case <-drain:
			srv.log.Info("drain started")
			leave()
		case <-retire:
			srv.log.Info("server retired")
			retire, retireTimer, retired = nil, time.After(retireGrace), time.Now()
		case <-retireTimer:
			if l.fromClients.HTTP1() > 0 && time.Since(retired) < clientIdleConn {
				retireTimer = time.After(retireGrace)
				continue
			}
			leave()
		case <-drained:
			drained = nil
			if srv.inFlight.isIdle() {
				return nil
			}
		case <-srv.inFlight.idle:
			if leaving && drained == nil && srv.inFlight.isIdle() {
				return nil
			}
		case <-deadline:
			srv.log.Warn("drain timed out; cutting the remaining streams")
			return nil
		case <-srv.probeRequested:
			if !srv.ready.Load() {
				l.shutClients(ctx) // the port is closed: one failure is enough
			}
			probe.Reset(0)
		case <-probe.C:
			if probing {
				continue
			}
			probing, brought, starvations = true, srv.brought.Load(), watch.starvations(time.Now())
			probes.Go(func() {
				result := srv.probeEngine(ctx)
				select {
				case health <- result:
				case <-ctx.Done():
				}
			})
		case result := <-health:
			probing = false
			err := result.err
			if err == nil && srv.hung.Load() && !result.generated {
				probe.Reset(0) // it began before the engine was found hung
				continue
			}
			if err == nil {
				failures = 0
				// The address is open before the replica is reported as ready: proxies connect at once.
				if !leaving && !srv.retiring() && !l.openClients(ctx) {
					probe.Reset(srv.cfg.HealthInterval)
					continue
				}
				if srv.hung.Swap(false) {
					watch.monitor.Resume()
				} else if !srv.ready.Load() {
					watch.reset()
					srv.forgetCached()
					srv.backoffs.forget(srv.cfg.Replica)
				}
				away, starting = time.Time{}, false
				srv.probePassed.Store(result.number)
				if !srv.setReady(true) {
					srv.log.Info("engine became ready")
					watch.sample(ctx, &probes)
				}
				probe.Reset(srv.cfg.HealthInterval)
				continue
			}
			if localfault.Is(err) {
				srv.log.Warn("health check not sent: this process ran out of a resource; the engine's state is unchanged", "error", err)
				probe.Reset(healthRetry)
				continue
			}
			mismatch := errors.As(err, new(*engineinfo.MismatchError))
			dead, slow := errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, context.DeadlineExceeded)
			if slow && (srv.brought.Load() != brought || watch.starvations(time.Now()) != starvations) {
				probe.Reset(healthRetry)
				continue // it does not answer, but generates; or this process was too late to read the answer
			}
			failures++
			if failures >= 2 || dead || mismatch || !srv.ready.Load() {
				if !mismatch {
					srv.engineState.noteAway()
				}
				srv.setReady(false) // a request that was refused may have done so
				if away.IsZero() {
					if away = time.Now(); !mismatch {
						srv.log.Warn("engine stopped answering health checks; refusing new requests", "error", err)
					}
				}
				if mismatch {
					starting = false // the log has said what is wrong
				}
				// One that has never been healthy may still load, or have another address.
				if starting && time.Since(away) > startNotice {
					starting = false
					srv.log.Warn("engine has passed no health check since the start; requests go to other replicas", "engine", srv.cfg.Engine, "error", err)
				}
				// An engine that reports that it is unhealthy, or whose port is
				// closed, is believed; one that does not answer may be busy.
				if !slow || time.Since(away) > srv.cfg.HangTimeout {
					srv.evacuate()
				}
				srv.templates.clear() // the next engine may be another one
				srv.engineFingerprint.Store(nil)
				l.shutClients(ctx)
			}
			if mismatch {
				probe.Reset(srv.cfg.HealthInterval)
				continue
			}
			probe.Reset(healthRetry)
		}
	}
}

// probeResult is the result of a check of the engine. generated says that the engine was
// asked for a token.
type probeResult struct {
	err       error
	generated bool
	number    uint64 // of probesBegun
}

// probeEngine checks the engine's health and, if it was hung, that it generates.
func (srv *Server) probeEngine(ctx context.Context) probeResult {
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.HealthTimeout)
	defer cancel()
	generate, number := srv.hung.Load(), srv.probesBegun.Add(1)
	resp, err := srv.probeCall(ctx, http.MethodGet, "/health", "")
	if err != nil {
		return probeResult{err, generate, number}
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return probeResult{fmt.Errorf("GET /health of the engine: status %s", resp.Status), generate, number}
	}
	if !srv.ready.Load() {
		srv.askOutputLimits(ctx) // the engine may be another one than before
	}
	if generate {
		if err = srv.probeGeneration(ctx); err != nil {
			return probeResult{err, generate, number}
		}
	}
	return probeResult{srv.learnEngine(ctx, !srv.ready.Load()), generate, number}
}
