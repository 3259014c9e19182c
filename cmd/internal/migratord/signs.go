package migratord

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	// watchPeriod is how often the peers that matter are named anew, and looked
	// at. A lease is a few times longer.
	watchPeriod = 250 * time.Millisecond
	// maxSampleAge is how old a sign of life may be.
	maxSampleAge = 2 * time.Second
)

// watchPeers keeps the network's eye on the peers that hold this front's streams, on
// those whose streams run here, and on those that are to say where one goes on.
func (d *Daemon) watchPeers(ctx context.Context) error {
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.liveness.record(d.frontend.PeerProgress())
			d.network.Watch(slices.Concat(d.frontend.Holders(), d.frontend.FrontEnds(), d.executor.FrontEnds()))
		}
	}
}

// liveness are the signs of life that peers give by the streams they hold. A busy
// machine may leave Beats unanswered while tokens come.
type liveness struct {
	mu   sync.Mutex
	last map[policies.ReplicaID]progressSample
}

// progressSample is how far a peer's streams were when they last went on.
type progressSample struct {
	progress uint64
	at       time.Time
}

func (s *liveness) record(progress map[policies.ReplicaID]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, now := make(map[policies.ReplicaID]progressSample, len(progress)), time.Now()
	for id, n := range progress {
		next[id] = progressSample{n, now}
		// Streams that end take their share away, which is no sign of life.
		if was, ok := s.last[id]; ok && n <= was.progress {
			next[id] = progressSample{n, was.at}
		}
	}
	s.last = next
}

// isAlive reports whether a stream that a peer holds went on lately.
func (s *liveness) isAlive(id policies.ReplicaID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sign, ok := s.last[id]
	return ok && time.Since(sign.at) < maxSampleAge
}
