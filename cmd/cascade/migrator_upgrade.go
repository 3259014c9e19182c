package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/cmd/internal/handover"
)

// Bounds of an upgrade.
const (
	// takeoverTimeout is how long a process waits for another one of the same
	// replica that is just starting, and for the one that runs to settle.
	takeoverTimeout = 30 * time.Second
	// engineTimeout is how long a successor waits for its engine before it sends
	// its predecessor away all the same.
	engineTimeout = 5 * time.Second
	// enginePollPeriod is the time between two looks meanwhile.
	enginePollPeriod = 20 * time.Millisecond
)

// upgrade is one process's part in upgrades of a replica's migrator: it takes
// the sockets of the process before it, and hands them to the one after it.
type upgrade struct {
	takeover  *handover.Takeover
	listeners *handover.Listeners
}

// beginUpgrade begins the process's part. dir holds the Unix sockets by which the
// processes of one user meet; address is the replica's. It must be abandoned
// where run is not reached.
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

// predecessor is the id of the process that runs, 0 for none.
func (s *upgrade) predecessor() int { return s.takeover.Process }

// abandon leaves everything to the process that runs, if it has not left yet.
func (s *upgrade) abandon() { s.takeover.Abandon() }

// listen opens a door: the predecessor's where it has one at that address.
func (s *upgrade) listen(name, address string) (net.Listener, error) {
	l := s.takeover.TakeListener(name, address)
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	gate, err := s.listeners.Add(name, l)
	if err != nil {
		l.Close()
	}
	return gate, err
}

// reopen returns what opens a door anew after its server has closed it.
func (s *upgrade) reopen(name string) func(network, address string) (net.Listener, error) {
	return func(_, address string) (net.Listener, error) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		gate, err := s.listeners.Add(name, l)
		if err != nil {
			l.Close()
		}
		return gate, err
	}
}

// upgradeSteps is what run joins.
type upgradeSteps struct {
	ready func() bool // the doors let requests in
	// lead does what one process of a replica may do at a time, until its
	// context ends.
	lead func(ctx context.Context) error
	// retire ends the process once what it has is done, and refuses nobody.
	retire func()
	// followPredecessor keeps in touch with the process before this one, and precede with the
	// one after it, until that one ends or ctx does; both close the link. The link
	// of follow is nil where there is no process before this one any more.
	followPredecessor, serveSuccessor func(ctx context.Context, link *handover.Link)
}

// run lets the predecessor go as soon as this process is ready, reigns, and
// hands over to a successor: then it retires. It returns when ctx ends, or when
// it reigns no more and has lost touch with its kin.
func (s *upgrade) run(ctx context.Context, p upgradeSteps, log *slog.Logger) error {
	if s.predecessor() != 0 {
		waitFor(ctx, p.ready)
	}
	post, before, err := s.takeover.Finish(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	var kin sync.WaitGroup
	defer kin.Wait()
	kin.Go(func() { p.followPredecessor(ctx, before) })
	reign, abdicate := context.WithCancel(ctx)
	defer abdicate()
	reigned := make(chan error, 1)
	go func() {
		defer abdicate()
		reigned <- p.lead(reign)
	}()
	if post == nil {
		return <-reigned
	}
	after, err := post.Serve(reign, handover.Config{
		Listeners: s.listeners, Logger: log,
		Stopped: func() {
			abdicate()
			reigned <- <-reigned
		},
	})
	switch {
	case err == nil:
		log.Info("another process has taken over; this one ends with its last stream")
		kin.Go(func() { p.serveSuccessor(ctx, after) })
		p.retire()
	case reign.Err() == nil:
		log.Warn("this process cannot be succeeded without a restart", "error", err)
	}
	return <-reigned
}

// waitFor waits until ready, for engineTimeout at most.
func waitFor(ctx context.Context, ready func() bool) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	for !ready() && ctx.Err() == nil {
		sleep(ctx, enginePollPeriod)
	}
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
