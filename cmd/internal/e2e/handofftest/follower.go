package handofftest

import (
	"strings"
	"sync"
	"testing"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

// follower is an index of what an engine holds, by its events.
type follower struct {
	model string
	log   testkit.Log
	stop  func()
	*kvevents.Subscriber

	mu    sync.Mutex
	index *prefix.Index
}

var _ kvevents.Index = (*follower)(nil)

// newFollower subscribes to an engine until the test ends or stop is called.
func newFollower(t *testing.T, e Engine) *follower {
	t.Helper()
	f := &follower{model: e.Model, index: prefix.NewIndex(2*e.Tokens/e.BlockTokens, 1)}
	c := kvevents.Config{Replay: strings.TrimPrefix(e.ReplayEndpoint, "tcp://"), Topic: e.Topic, Model: e.Model, Index: f, Log: f.log.Logger()}
	if port, listens := strings.CutPrefix(e.Endpoint, "tcp://*:"); listens {
		c.Dial = "127.0.0.1:" + port
	} else {
		c.Listen = strings.TrimPrefix(e.Endpoint, "tcp://")
	}
	f.Subscriber = testkit.Must(kvevents.New(c))
	f.stop = testkit.Run(t, f.Run)
	return f
}

// Store implements kvevents.Index.
func (f *follower) Store(s *prefix.Stored) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.Store(s)
}

// Remove implements kvevents.Index.
func (f *follower) Remove(r prefix.Removed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.Remove(r)
}

// Clear implements kvevents.Index.
func (f *follower) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index.Clear()
}

// match returns how many tokens of a prompt the engine holds.
func (f *follower) match(salt string, ids []uint32) policies.Tokens {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.index.Match(prefix.Root(f.model, "", salt), ids)
}

// removed returns how many blocks the engine has removed.
func (f *follower) removed() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.index.Counts().Removed
}
