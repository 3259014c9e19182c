package frontend

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/internal/localfault"
	"github.com/cascadeinfer/cascade/migrator/engineinfo"
	"github.com/cascadeinfer/cascade/migrator/internal/enginestate"
	"github.com/cascadeinfer/cascade/policies/admission"
)

// engineWatch drives the state machine of the own engine, and what is to be done a few times a
// second. Its fields belong to run.
type engineWatch struct {
	server    *Server
	listeners *listeners
	machine   *enginestate.Machine
	start     time.Time
	workers   sync.WaitGroup // health checks, reads of counters, and answers that are read ahead

	due     *time.Timer
	checks  chan checkResult
	last    checkResult
	samples chan counterSample
	seed    maphash.Seed
}

// checkResult is the result of a check of the engine. generated says that the engine was
// asked for a token.
type checkResult struct {
	err       error
	generated bool
	number    uint64 // of probesBegun
}

func newEngineWatch(srv *Server, l *listeners) *engineWatch {
	c := enginestate.Config{Cost: srv.cfg.Cost, MinPause: srv.cfg.MinPause, HealthInterval: srv.cfg.HealthInterval, HangTimeout: srv.cfg.HangTimeout}
	return &engineWatch{server: srv, listeners: l, machine: enginestate.New(c), start: time.Now(), due: time.NewTimer(0),
		checks: make(chan checkResult), samples: make(chan counterSample), seed: maphash.MakeSeed()}
}

// run watches the engine until ctx ends.
func (w *engineWatch) run(ctx context.Context) {
	srv := w.server
	sweep := time.NewTicker(updateInterval)
	defer sweep.Stop()
	defer w.due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			srv.checkReaders(&w.workers)
			srv.tracker.Update()
			srv.updateLoadHeader()
			srv.admission.update(func(l *admission.Ledger) { l.SetIteration(srv.tracker.Iteration()) })
			w.step(ctx, enginestate.Event{Kind: enginestate.Ticked, Work: srv.engineWork(w.machine.CountsSteps()), GivenUp: srv.givenUp.Load(), LoadDue: srv.engineFacts.due(time.Now())})
		case s := <-w.samples:
			w.step(ctx, enginestate.Event{Kind: enginestate.Sampled, Counters: s.hash})
			srv.handleMetrics(s, time.Now())
		case <-srv.probeRequested:
			w.step(ctx, enginestate.Event{Kind: enginestate.CheckRequested})
		case <-w.due.C:
			w.step(ctx, enginestate.Event{Kind: enginestate.CheckDue})
		case w.last = <-w.checks:
			w.step(ctx, enginestate.Event{Kind: enginestate.Checked, Outcome: outcomeOf(w.last.err), Generated: w.last.generated})
		}
	}
}

// step passes an event to the machine and carries out what follows.
func (w *engineWatch) step(ctx context.Context, ev enginestate.Event) {
	srv := w.server
	ev.Now, ev.Ready, ev.Brought = time.Since(w.start), srv.ready.Load(), srv.brought.Load()
	for _, a := range w.machine.Step(ev) {
		switch a.Kind {
		case enginestate.ReadCounters:
			startWork(ctx, &w.workers, w.samples, func() counterSample { return srv.readCounters(ctx, w.seed) })
		case enginestate.BeginCheck:
			startWork(ctx, &w.workers, w.checks, func() checkResult { return srv.checkEngine(ctx, a.Generate) })
		case enginestate.NextCheck:
			w.due.Reset(a.After)
		case enginestate.Open:
			// Clients that wait are answered once requests are accepted, and not refused.
			w.step(ctx, enginestate.Event{Kind: enginestate.Opened, Open: w.listeners.listenClients()})
			w.listeners.acceptClients(ctx)
			return // it was the last action
		case enginestate.Shut:
			w.listeners.shutClients(ctx)
		case enginestate.Accept:
			srv.hung.Store(false)
			srv.probePassed.Store(w.last.number)
			srv.setReady(true)
		case enginestate.Refuse:
			srv.setReady(false)
		case enginestate.Move:
			srv.evacuate()
		case enginestate.Cut:
			srv.cancelLegs(errNoProgress, func(*localLeg) bool { return true })
		case enginestate.Forget:
			srv.forgetCached()
			srv.backoffs.forget(srv.cfg.Replica)
		case enginestate.ForgetModel:
			srv.templates.clear()
			srv.engineFingerprint.Store(nil)
		case enginestate.ForgetOther:
			srv.engineFacts.noteAway()
		default:
			w.note(a.Kind)
		}
	}
}

// note logs what the machine has found, and counts what is hung.
func (w *engineWatch) note(kind enginestate.ActionKind) {
	srv := w.server
	switch kind {
	case enginestate.NoteHung:
		srv.hung.Store(true)
		srv.hangs.Add(1)
		pause, limit := w.machine.Pause()
		srv.log.Warn("engine makes no progress; sending its requests to other replicas", "pause", pause, "limit", limit)
	case enginestate.NoteAway:
		srv.log.Warn("engine stopped answering health checks; refusing new requests", "error", w.last.err)
	case enginestate.NoteSilent:
		srv.log.Warn("engine has passed no health check since the start; requests go to other replicas", "engine", srv.cfg.Engine, "error", w.last.err)
	case enginestate.NoteLocal:
		srv.log.Warn("health check not sent: this process ran out of a resource; the engine's state is unchanged", "error", w.last.err)
	case enginestate.NoteReady:
		srv.log.Info("engine became ready")
	}
}

// startWork runs f on a goroutine of workers and sends its result to out, unless ctx ends.
func startWork[T any](ctx context.Context, workers *sync.WaitGroup, out chan<- T, f func() T) {
	workers.Go(func() {
		result := f()
		select {
		case out <- result:
		case <-ctx.Done():
		}
	})
}

// outcomeOf classifies the error of a health check.
func outcomeOf(err error) enginestate.Outcome {
	switch {
	case err == nil:
		return enginestate.Passed
	case localfault.Is(err):
		return enginestate.LocalFault
	case errors.As(err, new(*engineinfo.MismatchError)):
		return enginestate.OtherEngine
	case errors.Is(err, syscall.ECONNREFUSED):
		return enginestate.Refused
	case errors.Is(err, context.DeadlineExceeded):
		return enginestate.Late
	}
	return enginestate.Unhealthy
}

// checkEngine checks the engine's health and, if generate, that it generates.
func (srv *Server) checkEngine(ctx context.Context, generate bool) checkResult {
	ctx, cancel := context.WithTimeout(ctx, srv.cfg.HealthTimeout)
	defer cancel()
	number := srv.probesBegun.Add(1)
	return checkResult{srv.probeEngine(ctx, generate), generate, number}
}

// askHealth returns what is wrong by the engine's own health check.
func (srv *Server) askHealth(ctx context.Context) error {
	path := srv.dialect().Capabilities().HealthPath
	resp, err := srv.probeCall(ctx, http.MethodGet, path, "")
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s of the engine: status %s", path, resp.Status)
	}
	return nil
}

// probeEngine returns why the engine cannot serve.
func (srv *Server) probeEngine(ctx context.Context, generate bool) error {
	if err := srv.askHealth(ctx); err != nil {
		return err
	}
	if generate {
		if err := srv.probeGeneration(ctx); err != nil {
			return err
		}
	}
	started, kind := !srv.ready.Load(), srv.dialect().Capabilities().Name
	err := srv.learnEngine(ctx, started)
	// It may be another engine than before, or one that has not said until now what it is, and so how it is asked.
	if err == nil && (started || srv.dialect().Capabilities().Name != kind) {
		srv.askLimits(ctx)
	}
	return err
}
