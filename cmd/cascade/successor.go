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
	// succeedTimeout is how long a process waits for another one of the same
	// replica that is just starting, and for the one that runs to settle.
	succeedTimeout = 30 * time.Second
	// engineTimeout is how long a successor waits for its engine before it sends
	// its predecessor away all the same.
	engineTimeout = 5 * time.Second
	// engineLook is the time between two looks meanwhile.
	engineLook = 20 * time.Millisecond
)

// successor is one process's part in upgrades of a replica's migrator: it takes
// the sockets of the process before it, and hands them to the one after it.
type successor struct {
	claim *handover.Claim
	doors *handover.Doors
}

// succeed begins the process's part. dir holds the Unix sockets by which the
// processes of one user meet; address is the replica's. It must be abandoned
// where run is not reached.
func succeed(ctx context.Context, dir, replica, address string) (*successor, error) {
	path, err := handover.Path(dir, replica, address)
	if err != nil {
		return nil, fmt.Errorf("--runtime-dir: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, succeedTimeout)
	defer cancel()
	claim, err := handover.Begin(ctx, path)
	if err != nil {
		return nil, err
	}
	return &successor{claim: claim, doors: &handover.Doors{}}, nil
}

// predecessor is the id of the process that runs, 0 for none.
func (s *successor) predecessor() int { return s.claim.Process }

// abandon leaves everything to the process that runs, if it has not left yet.
func (s *successor) abandon() { s.claim.Abandon() }

// listen opens a door: the predecessor's where it has one at that address.
func (s *successor) listen(name, address string) (net.Listener, error) {
	l := s.claim.Take(name, address)
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", address); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	gate, err := s.doors.Add(name, l)
	if err != nil {
		l.Close()
	}
	return gate, err
}

// again returns what opens a door anew after its server has closed it.
func (s *successor) again(name string) func(network, address string) (net.Listener, error) {
	return func(_, address string) (net.Listener, error) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, err
		}
		gate, err := s.doors.Add(name, l)
		if err != nil {
			l.Close()
		}
		return gate, err
	}
}

// part is what run joins.
type part struct {
	ready func() bool // the doors let requests in
	// reign does what one process of a replica may do at a time, until its
	// context ends.
	reign func(ctx context.Context) error
	// retire ends the process once what it has is done, and refuses nobody.
	retire func()
	// follow keeps in touch with the process before this one, and precede with the
	// one after it, until that one ends or ctx does; both close the link. The link
	// of follow is nil where there is no process before this one any more.
	follow, precede func(ctx context.Context, link *handover.Link)
}

// run lets the predecessor go as soon as this process is ready, reigns, and
// hands over to a successor: then it retires. It returns when ctx ends, or when
// it reigns no more and has lost touch with its kin.
func (s *successor) run(ctx context.Context, p part, log *slog.Logger) error {
	if s.predecessor() != 0 {
		waitFor(ctx, p.ready)
	}
	post, before, err := s.claim.Finish(ctx)
	if err != nil && ctx.Err() == nil {
		return err
	}
	var kin sync.WaitGroup
	defer kin.Wait()
	kin.Go(func() { p.follow(ctx, before) })
	reign, abdicate := context.WithCancel(ctx)
	defer abdicate()
	reigned := make(chan error, 1)
	go func() {
		defer abdicate()
		reigned <- p.reign(reign)
	}()
	if post == nil {
		return <-reigned
	}
	after, err := post.Serve(reign, handover.Config{
		Doors: s.doors, Logger: log,
		Left: func() {
			abdicate()
			reigned <- <-reigned
		},
	})
	switch {
	case err == nil:
		log.Info("another process has taken over; this one ends with its last stream")
		kin.Go(func() { p.precede(ctx, after) })
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
		pause(ctx, engineLook)
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
