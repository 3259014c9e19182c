package executor

import (
	"context"
	"sync"
	"time"
)

// pacer is a link that transfers bytes at a fixed rate, one pull after the other.
type pacer struct {
	rate int64 // bytes per second; 0 for no pacing

	mu   sync.Mutex
	free time.Time // when the link is idle again
}

// wait returns when a transfer of bytes that began at start would be complete, or with
// ctx's error; then it frees the rest of the transfer's time on the link.
func (p *pacer) wait(ctx context.Context, start time.Time, bytes int64) error {
	if p.rate == 0 || bytes <= 0 {
		return nil
	}
	p.mu.Lock()
	if p.free.Before(start) {
		p.free = start
	}
	// Split into whole seconds and a rest to avoid an overflow.
	takes := time.Duration(bytes/p.rate)*time.Second + time.Duration(float64(bytes%p.rate)/float64(p.rate)*float64(time.Second))
	p.free = p.free.Add(takes)
	end := p.free
	wait := time.Until(end)
	p.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free = p.free.Add(-max(0, min(takes, time.Until(end))))
		return ctx.Err()
	}
}
