// Package emulatedlink paces the pulls of transports to the rate of a link, for fleets whose
// engines are emulated: their blocks have fewer bytes than those of the engines they emulate.
package emulatedlink

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// Link is the link into one replica. It carries one pull after the other. It is safe for
// concurrent use.
type Link struct {
	rate       int64
	blockBytes func() int64

	mu   sync.Mutex
	free time.Time // when the link is idle again
}

// New returns a link that carries rate bytes per second, more than 0. blockBytes returns the size
// of a block on the emulated engine; it must not block.
func New(rate int64, blockBytes func() int64) *Link {
	return &Link{rate: rate, blockBytes: blockBytes}
}

// Carry returns a transport whose pulls take as long as this link needs for their blocks.
func (l *Link) Carry(t transport.Transport) transport.Transport { return carried{t, l} }

type carried struct {
	transport.Transport
	link *Link
}

func (c carried) Open(ctx context.Context, receiver policies.ReplicaID, o transport.Offer) (transport.Puller, error) {
	p, err := c.Transport.Open(ctx, receiver, o)
	if err != nil {
		return nil, err
	}
	return puller{p, c.link}, nil
}

type puller struct {
	transport.Puller
	link *Link
}

func (p puller) Pull(ctx context.Context, plan transport.Plan) (transport.Stats, error) {
	start := time.Now()
	stats, err := p.Puller.Pull(ctx, plan)
	if err == nil || errors.As(err, new(*transport.CorruptError)) {
		if late := p.link.wait(ctx, start, int64(len(plan.Src))*p.link.blockBytes()); late != nil {
			return transport.Stats{}, late
		}
	}
	return stats, err
}

// wait returns when a transfer of bytes that began at start would be complete, or with
// ctx's error; then it frees the rest of the transfer's time on the link.
func (l *Link) wait(ctx context.Context, start time.Time, bytes int64) error {
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
