package loadreport

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/xds/api"
)

// reportStream is the report stream to one control plane.
type reportStream struct {
	reporter *Reporter
	index    int // in Reporter.streams
	conn     grpc.ClientConnInterface
	known    delta
	changed  chan struct{} // holds a token when a report should be sent at once
}

// reportNow sends a report at once.
func (l *reportStream) reportNow() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// run keeps the stream open until ctx ends.
func (l *reportStream) run(ctx context.Context) {
	log := l.reporter.cfg.Logger.With("replica", string(l.reporter.cfg.Replica))
	pause, was := minRetryDelay, ""
	var logged time.Time // when was was logged; zero without an outage
	for {
		answered, err := l.runStream(ctx, log, !logged.IsZero())
		if ctx.Err() != nil {
			return
		}
		if answered {
			pause, was, logged = minRetryDelay, "", time.Time{}
		}
		// Log an outage, and new causes once a minute: they may alternate, and have ports in their texts.
		if now := time.Now(); err.Error() != was && now.Sub(logged) >= logEvery {
			log.Warn("reporting to control plane failed; retrying", "error", err)
			was, logged = err.Error(), now
		}
		wait := time.NewTimer(pause/2 + rand.N(pause/2+1))
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return
		}
		pause = min(2*pause, maxRetryDelay)
	}
}

var errSilent = fmt.Errorf("the control plane has not answered for %v", replyTimeout)

// runStream runs one stream to its end. answered reports whether the control plane has
// answered a report. outage reports whether an outage was logged, whose end is logged then.
func (l *reportStream) runStream(ctx context.Context, log *slog.Logger, outage bool) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Send and Recv have no deadline: a stream that stalls in either direction is
	// cancelled by a timer.
	watch := time.AfterFunc(replyTimeout, func() { cancel(errSilent) })
	defer watch.Stop()
	reports, err := api.NewFleetClient(l.conn).Report(ctx)
	if err != nil {
		return false, cause(ctx, err)
	}
	var reader sync.WaitGroup
	defer reader.Wait()
	ended := make(chan error, 1)
	replies := 0
	l.known.reset()
	reader.Go(func() {
		for {
			reply, err := reports.Recv()
			if err != nil {
				ended <- err
				return
			}
			watch.Reset(replyTimeout)
			if replies++; replies == 1 && outage {
				log.Warn("reporting to control plane again")
			}
			l.known.acknowledge(reply.GetSequence())
			l.reporter.handleReply(l.index, reply)
		}
	})
	defer cancel(nil) // before waiting for the reader

	tick := time.NewTicker(l.reporter.cfg.Interval)
	defer tick.Stop()
	for sequence := uint64(1); ; sequence++ {
		sent := reports.Send(l.reporter.buildReport(sequence, &l.known))
		if sent != nil && sent != io.EOF { // EOF: Recv returns the cause
			cancel(sent)
		}
		select {
		case err := <-ended:
			return replies > 0, cause(ctx, err)
		case <-tick.C:
		case <-l.changed:
		}
	}
}

// cause returns the cause of ctx's end if it has ended, else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
