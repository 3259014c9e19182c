// Package ratelimitlog says which of many equal events an operator has to be told of: the
// first, and one a minute of those that follow. It logs nothing itself.
//
// Invariant: whoever invents names fills neither the log nor the memory.
package ratelimitlog

import (
	"sync"
	"time"
)

const (
	// Interval is how long nothing more is told of what was told.
	Interval = time.Minute
	// MaxKeys bounds what is remembered for it. While there is as much, nothing else is
	// told.
	MaxKeys = 1024
	// sweepEvery is between two looks for what may be forgotten.
	sweepEvery = time.Second
)

// Limiter remembers what was told. The zero Gate has told nothing. It is safe for
// concurrent use.
type Limiter struct {
	mu     sync.Mutex
	logged map[string]time.Time
	swept  time.Time // when told was last gone through
}

// Allow reports whether an event, which is named by what makes it equal to others, is
// to be told now. Times do not go back.
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

// Len is how many events are remembered, at most Most.
func (g *Limiter) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.logged)
}
