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
	// Quiet is how long nothing more is told of what was told.
	Quiet = time.Minute
	// Most bounds what is remembered for it. While there is as much, nothing else is
	// told.
	Most = 1024
	// sweepEvery is between two looks for what may be forgotten.
	sweepEvery = time.Second
)

// Gate remembers what was told. The zero Gate has told nothing. It is safe for
// concurrent use.
type Gate struct {
	mu    sync.Mutex
	told  map[string]time.Time
	swept time.Time // when told was last gone through
}

// Pass reports whether an event, which is named by what makes it equal to others, is
// to be told now. Times do not go back.
func (g *Gate) Pass(name string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at, ok := g.told[name]; ok && now.Sub(at) < Quiet {
		return false
	}
	if len(g.told) >= Most && now.Sub(g.swept) >= sweepEvery {
		g.swept = now
		for other, at := range g.told {
			if now.Sub(at) >= Quiet {
				delete(g.told, other)
			}
		}
	}
	if len(g.told) >= Most {
		return false
	}
	if g.told == nil {
		g.told = make(map[string]time.Time)
	}
	g.told[name] = now
	return true
}

// Len is how many events are remembered, at most Most.
func (g *Gate) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.told)
}
