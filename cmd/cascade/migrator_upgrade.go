package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/handover"
	"github.com/cascadeinfer/cascade/cmd/internal/migratord"
)

// Bounds of an upgrade.
const (
	// takeoverTimeout is how long a process waits for another starting process of the same replica,
	// and for the running process to prepare.
	takeoverTimeout = 30 * time.Second
	// engineTimeout is how long a new process waits for its engine before it stops its predecessor
	// even without one.
	engineTimeout = 5 * time.Second
	// enginePollPeriod is the time between two checks of the engine.
	enginePollPeriod = 20 * time.Millisecond
)

// upgrade is a process's part in the upgrades of a replica's migrator: it takes
// over the listeners of the preceding process, and hands them to the next one.
type upgrade struct {
	takeover  *handover.Takeover
	listeners *handover.Listeners
}

// beginUpgrade begins the takeover. dir holds the Unix sockets by which the processes of a user
// find each other; address is the replica's. The caller must call either run or abandon.
func beginUpgrade(ctx context.Context, dir, replica, address string) (*upgrade, error) {
	path, err := handover.Path(dir, replica, address)
	if err != nil {
		return nil, fmt.Errorf("--runtime-dir: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, takeoverTimeout)
	defer cancel()
	claim, err := handover.Begin(ctx, path)
	if err != nil {
		return nil, err
	}
	return &upgrade{takeover: claim, listeners: &handover.Listeners{}}, nil
}

// predecessor returns the id of the running process, 0 for none.
func (s *upgrade) predecessor() int { return s.takeover.Process }

// abandon leaves the listeners to the running process, unless it has stopped
// accepting.
func (s *upgrade) abandon() { s.takeover.Abandon() }

// listen returns the predecessor's listener if it has one at that address, else a new one.
func (s *upgrade) listen(name, address string) (net.Listener, error) {
	l := s.takeover.TakeListener(name, address)
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return s.add(name, l)
}

// add adds a listener to those that a successor takes over, or closes it.
func (s *upgrade) add(name string, l net.Listener) (net.Listener, error) {
	added, err := s.listeners.Add(name, l)
	if err != nil {
		l.Close()
	}
	return added, err
}

// reopen returns a function that opens a listener again after its server has closed it.
func (s *upgrade) reopen(name string) func(network, address string) (net.Listener, error) {
	return func(_, address string) (net.Listener, error) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		return s.add(name, l)
	}
}

// run stops the predecessor as soon as the daemon is ready, then leads until it hands over to a
// successor and retires. It returns when ctx ends, or when it no longer leads and the links to the
// other processes have ended.
func (s *upgrade) run(ctx context.Context, d *migratord.Daemon, log *slog.Logger) error {
	if s.predecessor() != 0 {
		waitForEngine(ctx, d)
	}
	server, before, err := s.takeover.Finish(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
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
		Stopped: func() {
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
