package migratord

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	// watchPeriod is the time between two updates of the monitored peers. A lease is
	// a few times longer.
	watchPeriod = 250 * time.Millisecond
	// maxSampleAge is the longest time since the last progress of a peer's streams for which the
	// peer counts as alive.
	maxSampleAge = 2 * time.Second
)

// watchPeers makes the network monitor the peers that hold this front end's streams, those whose
// streams run on this replica, and those that decide where a stream continues.
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

// liveness records when the streams that peers hold last made progress: a busy host may not answer
// heartbeats although its tokens arrive.
type liveness struct {
	mu   sync.Mutex
	last map[policies.ReplicaID]progressSample
}

// progressSample is the progress of a peer's streams, and the time of its last increase.
type progressSample struct {
	progress uint64
	at       time.Time
}

// record records the progress of all peers.
func (s *liveness) record(progress map[policies.ReplicaID]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, now := make(map[policies.ReplicaID]progressSample, len(progress)), time.Now()
	for id, n := range progress {
		next[id] = progressSample{n, now}
		// When a stream ends, its tokens leave the sum; that is no progress.
		if was, ok := s.last[id]; ok && n <= was.progress {
			next[id] = progressSample{n, was.at}
		}
	}
	s.last = next
}

// isAlive reports whether a stream that a peer holds made progress recently.
func (s *liveness) isAlive(id policies.ReplicaID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sign, ok := s.last[id]
	return ok && time.Since(sign.at) < maxSampleAge
}
