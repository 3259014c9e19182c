package fleet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"github.com/cascadeinfer/cascade/xds/store"
)

// faultyStore is a store whose writes fail or whose watch is slow.
type faultyStore struct {
	*store.Store // in memory
	mu           sync.Mutex
	fault        string
	writes       int
	delivered    chan struct{} // nil: the watch is not slow
	works        chan struct{} // closed when a hung store works again
}

// connection is the store as one control plane uses it.
type connection struct {
	*faultyStore
	plane *plane
}

func (c connection) CompareAndSwap(ctx context.Context, old store.Version, o store.Object) (store.Version, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if c.fault == "hung" || c.fault == "stuck" { // as a write in the kernel, which no context ends
		if c.fault == "stuck" {
			ctx = context.WithoutCancel(ctx)
		}
		works := c.works
		c.mu.Unlock()
		<-works
		c.mu.Lock()
	}
	why, failing := map[string]error{"full": syscall.ENOSPC, "read-only": syscall.EROFS}[c.fault]
	switch {
	case c.plane.dead:
		return "", errors.New("dead")
	case failing: // as on a full disk: each error names another temporary file
		return "", fmt.Errorf("plan file x: %w", &fs.PathError{Op: "open", Path: fmt.Sprint("x.tmp", c.writes), Err: why})
	}
	if c.fault == "late" {
		c.mu.Unlock()
		defer c.mu.Lock()
		time.Sleep(writesLate)
		defer time.Sleep(answersLate)
	}
	return c.Store.CompareAndSwap(ctx, old, o)
}

// A late store writes after writesLate, so that all control planes that read the same
// object begin their writes before the first one is made, and answers after answersLate.
const (
	writesLate  = 100 * time.Millisecond
	answersLate = 500 * time.Millisecond
)

func (c connection) Watch(ctx context.Context) <-chan store.Update {
	in, out := c.Store.Watch(ctx), make(chan store.Update)
	go func() {
		defer close(out)
		for u := range in {
			c.mu.Lock()
			delivered, unreadable := c.delivered, c.fault == "unreadable"
			c.mu.Unlock()
			if unreadable {
				u.Err = errors.New("garbage")
			}
			if delivered != nil {
				select {
				case <-delivered:
				case <-ctx.Done():
					continue
				}
			}
			select {
			case out <- u:
			case <-ctx.Done():
			}
		}
	}()
	return out
}
