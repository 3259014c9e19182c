package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/xds/store"
)

// Follower is a watch of a store. It belongs to the goroutine of its test.
type Follower struct {
	// Updates are what the watch has not received yet.
	Updates <-chan store.Update
	t       *testing.T
}

// Follow watches a store until the test ends.
func Follow(t *testing.T, s store.Plans) *Follower {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Follower{Updates: s.Watch(ctx), t: t}
	t.Cleanup(func() {
		cancel()
		for range f.Updates {
		}
	})
	return f
}

// Await receives until an epoch comes, and returns how long that took. The test fails if it does not come.
func (f *Follower) Await(epoch policies.Epoch) time.Duration {
	f.t.Helper()
	began := time.Now()
	deadline := time.After(timeout)
	for {
		select {
		case u := <-f.Updates:
			if u.Err == nil && u.Object.Epoch == epoch {
				return time.Since(began)
			}
		case <-deadline:
			f.t.Fatalf("epoch %d has not arrived", epoch)
		}
	}
}

// AwaitError receives until an error comes, and returns it. The test fails if none comes.
func (f *Follower) AwaitError() error {
	f.t.Helper()
	deadline := time.After(timeout)
	for {
		select {
		case u := <-f.Updates:
			if u.Err != nil {
				return u.Err
			}
		case <-deadline:
			f.t.Fatal("no error has arrived")
		}
	}
}
