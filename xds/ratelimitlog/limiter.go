// Package ratelimitlog limits how often equal events are logged: the first one is
// logged, and then at most one per minute. The caller logs; this package only decides.
//
// Invariant: a peer that invents new event names fills neither the log nor the memory.
package ratelimitlog

import (
	"sync"
	"time"
)

const (
	// Interval is the minimum time between two logs of one event.
	Interval = time.Minute
	// MaxKeys bounds the remembered events. While that many are remembered, new events
	// are not logged.
	MaxKeys = 1024
	// sweepEvery is the time between two passes that remove old events.
	sweepEvery = time.Second
)

// Limiter remembers the logged events. The zero Limiter is ready to use. It is safe for
// concurrent use.
type Limiter struct {
	mu     sync.Mutex
	logged map[string]time.Time
	swept  time.Time // when old events were last removed
}

// Allow reports whether an event is to be logged now. Its name is equal for equal
// events. Times must not go back.
func (g *Limiter) Allow(name string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, ok := g.logged[name]; ok && now.Sub(at) < Interval {
		return false
	}
	if len(g.logged) >= MaxKeys && now.Sub(g.swept) >= sweepEvery {
		g.swept = now
		for other, at := range g.logged {
			if now.Sub(at) >= Interval {
				delete(g.logged, other)
			}
		}
	}
	if len(g.logged) >= MaxKeys {
		return false
	}
	if g.logged == nil {
		g.logged = make(map[string]time.Time)
	}
	g.logged[name] = now
	return true
}

// Len returns how many events are remembered, at most MaxKeys.
func (g *Limiter) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.logged)
}
