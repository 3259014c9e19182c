package handofftest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cascadeinfer/cascade/engine/emulator"
)

// lease is how long KV is kept for a reader, vLLM's default.
const lease = 30 * time.Second

// connection is the KV connector of one process of an engine, on the network in memory. It fails like vLLM 0.32.0 with a
// NixlConnector: who fetches from a process that has ended gets nothing, from one that is frozen waits without an end,
// and after the lease gets other KV without noticing.
type connection struct {
	e     *engine
	ended chan struct{} // closed when the process has ended
}

// kvOffer is KV that a process hands over.
type kvOffer struct {
	from  *connection
	bytes []byte
	until time.Time
}

// offers is the KV that is handed over on a network, by handle and digest.
type offers struct {
	mu sync.Mutex
	by map[string]kvOffer
}

func (all *offers) get(key string) (kvOffer, bool) {
	all.mu.Lock()
	defer all.mu.Unlock()
	o, ok := all.by[key]
	return o, ok
}

// Run implements emulator.KVConnector.
func (c *connection) Run(ctx context.Context) error {
	<-ctx.Done()
	close(c.ended)
	return nil
}

// Replica implements emulator.KVConnector.
func (c *connection) Replica() (string, bool) { return string(c.e.id), true }

// Offer implements emulator.KVConnector.
func (c *connection) Offer(handle, digest string, blocks []byte) error {
	all := &c.e.scene.offers
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.by == nil {
		all.by = make(map[string]kvOffer)
	}
	all.by[handle+digest] = kvOffer{c, blocks, time.Now().Add(lease)}
	return nil
}

// Fetch implements emulator.KVConnector.
func (c *connection) Fetch(ctx context.Context, w emulator.KVWant) ([]byte, error) {
	if c.e.breakFetch != nil {
		if err := c.e.breakFetch(); err != nil {
			return nil, err
		}
	}
	if holder := c.e.scene.engineOf(w.Holder); holder != nil && !holder.waitWhileFrozen(ctx) {
		return nil, ctx.Err()
	}
	o, ok := c.e.scene.offers.get(w.Handle + w.Digest)
	for range 20 { // the engine may name an offer a moment before it makes it
		if !ok {
			time.Sleep(time.Millisecond)
			o, ok = c.e.scene.offers.get(w.Handle + w.Digest)
		}
	}
	if !ok {
		return nil, errors.New("no such offer")
	}
	select {
	case <-o.from.ended:
		return nil, errors.New("the holder's process has ended")
	default:
	}
	if time.Now().After(o.until) {
		return make([]byte, len(o.bytes)*w.Blocks/(w.First+w.Blocks)), nil // its blocks were reused
	}
	return o.bytes[len(o.bytes)*w.First/(w.First+w.Blocks):], nil
}
