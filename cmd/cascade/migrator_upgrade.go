package main

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/handover"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
)

const (
	// engineTimeout is how long a new process waits for its engine before it stops its predecessor
	// even without one.
	engineTimeout = 5 * time.Second
	// enginePollPeriod is the time between two checks of the engine.
	enginePollPeriod = 20 * time.Millisecond
)

// runMigrator stops the predecessor as soon as the daemon is ready, then leads until it hands over to a
// successor and retires. It returns when ctx ends, or when it no longer leads and the links to the
// other processes have ended.
func (s *upgrade) runMigrator(ctx context.Context, d *migratord.Daemon, log *slog.Logger) error {
	if s.predecessor() != 0 {
		waitForEngine(ctx, d)
	}
	server, before, err := s.takeover.Finish(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	notifySystemd(log, systemdReady)
	var links sync.WaitGroup
	defer links.Wait()
	links.Go(func() {
		if before == nil { // as an interface, a nil *handover.Link would not be nil
			d.FollowPredecessor(ctx, nil)
			return
		}
		d.FollowPredecessor(ctx, before)
	})
	leading, stepDown := context.WithCancel(ctx)
	defer stepDown()
	led := make(chan error, 1)
	go func() {
		defer stepDown()
		led <- d.Lead(leading)
	}()
	if server == nil {
		return <-led
	}
	after, err := server.Serve(leading, handover.Config{
		Listeners: s.listeners, Logger: log,
		Stopped: func(successor int) {
			notifySystemd(log, mainProcess(successor))
			stepDown()
			led <- <-led
		},
	})
	switch {
	case err == nil:
		log.Info("another process has taken over, this one ends with its last stream")
		links.Go(func() { d.ServeSuccessor(ctx, after) })
		d.Retire()
	case leading.Err() == nil:
		log.Warn("handover stopped; the next upgrade needs a restart", "error", err)
	}
	return <-led
}

// waitForEngine waits until the engine of a daemon is ready, for at most engineTimeout.
func waitForEngine(ctx context.Context, d *migratord.Daemon) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	tick := time.NewTicker(enginePollPeriod)
	defer tick.Stop()
	for !d.Frontend().Status().EngineReady {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
