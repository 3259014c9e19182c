package migratord

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

const (
	// watchEvery is how often the peers that matter are named anew, and looked
	// at. A lease is a few times longer.
	watchEvery = 250 * time.Millisecond
	// fresh is how old a sign of life may be.
	fresh = 2 * time.Second
)

// watch keeps the network's eye on the peers that hold this front's streams, on
// those whose streams run here, and on those that are to say where one goes on.
func (d *Daemon) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			d.signs.note(d.front.PeerProgress())
			d.network.Watch(slices.Concat(d.front.Holders(), d.front.FrontEnds(), d.mover.Fronts()))
		}
	}
}

// signs are the signs of life that peers give by the streams they hold. A busy
// machine may leave Beats unanswered while tokens come.
type signs struct {
	mu   sync.Mutex
	last map[policies.ReplicaID]sign
}

// sign is how far a peer's streams were when they last went on.
type sign struct {
	progress uint64
	at       time.Time
}

func (s *signs) note(progress map[policies.ReplicaID]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, now := make(map[policies.ReplicaID]sign, len(progress)), time.Now()
	for id, n := range progress {
		next[id] = sign{n, now}
		// Streams that end take their share away, which is no sign of life.
		if was, ok := s.last[id]; ok && n <= was.progress {
			next[id] = sign{n, was.at}
		}
	}
	s.last = next
}

// lives reports whether a stream that a peer holds went on lately.
func (s *signs) lives(id policies.ReplicaID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sign, ok := s.last[id]
	return ok && time.Since(sign.at) < fresh
}
