package transport

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/policies"
)

// EmulatedLink paces pulls to the rate of the link into one replica, for fleets whose engines are emulated: their
// blocks have fewer bytes than those of the engines they emulate. It carries one pull after the other. It is safe for
// concurrent use.
type EmulatedLink struct {
	rate       int64
	blockBytes func() int64

	mu   sync.Mutex
	free time.Time // when the link is idle again
}

// NewEmulatedLink returns a link that carries rate bytes per second, more than 0. blockBytes returns the size
// of a block on the emulated engine; it must not block.
func NewEmulatedLink(rate int64, blockBytes func() int64) *EmulatedLink {
	return &EmulatedLink{rate: rate, blockBytes: blockBytes}
}

// Carry returns a transport whose pulls take as long as this link needs for their blocks.
func (l *EmulatedLink) Carry(t Transport) Transport { return pacedTransport{t, l} }

type pacedTransport struct {
	Transport
	link *EmulatedLink
}

func (c pacedTransport) Open(ctx context.Context, receiver policies.ReplicaID, o Offer) (Puller, error) {
	p, err := c.Transport.Open(ctx, receiver, o)
	if err != nil {
		return nil, err
	}
	return pacedPuller{p, c.link}, nil
}

type pacedPuller struct {
	Puller
	link *EmulatedLink
}

func (p pacedPuller) Pull(ctx context.Context, plan Plan) (Stats, error) {
	start := time.Now()
	stats, err := p.Puller.Pull(ctx, plan)
	if err == nil || errors.As(err, new(*CorruptError)) {
		if late := p.link.wait(ctx, start, int64(len(plan.Src))*p.link.blockBytes()); late != nil {
			return Stats{}, late
		}
	}
	return stats, err
}

// wait returns when a transfer of bytes that began at start would be complete, or with
// ctx's error; then it frees the rest of the transfer's time on the link.
func (l *EmulatedLink) wait(ctx context.Context, start time.Time, bytes int64) error {
	l.mu.Lock()
	if l.free.Before(start) {
		l.free = start
	}
	// Split into whole seconds and a rest to avoid an overflow.
	rest := float64(bytes%l.rate) / float64(l.rate) * float64(time.Second)
	takes := time.Duration(bytes/l.rate)*time.Second + time.Duration(rest)
	l.free = l.free.Add(takes)
	end := l.free
	l.mu.Unlock()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free = l.free.Add(-max(0, min(takes, time.Until(end))))
		return ctx.Err()
	}
}
