// Package kvpublisher publishes an emulated engine's KV events as vLLM 0.32 does: which blocks its
// prefix cache has stored and removed, in MessagePack on a ZeroMQ PUB socket, with a ROUTER socket for
// batches that a subscriber has missed.
//
// A message has the frames topic, sequence number and payload. Sequence numbers begin at 0 with
// every Publisher and grow by one per batch. A replay request has an empty frame and the first number
// that is asked for; its answers have an empty frame before those of the message, and the last
// one has the sequence number -1 and nothing else.
//
// Sockets are on loopback unless the configuration names another address: events contain the
// token ids of prompts.
package kvpublisher

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cascadeinfer/cascade/internal/zmtp"
)

// Faults are what a subscriber meets when messages are lost or an engine is slow. The zero value is none.
type Faults struct {
	// DropEvery, DuplicateEvery and GarbageEvery lose every so manieth batch on the PUB socket, send it twice, or
	// send a payload that is not MessagePack. 0 means none.
	DropEvery      int `json:"drop_every"`
	DuplicateEvery int `json:"duplicate_every"`
	GarbageEvery   int `json:"garbage_every"`
	// DelaySeconds is how much later batches are sent, PauseSeconds how long the publisher needs for
	// each.
	DelaySeconds float64 `json:"delay_seconds"`
	PauseSeconds float64 `json:"pause_seconds"`
	// ReplayBatches ends replays after so many batches, and without the end marker. 0 means complete
	// replays.
	ReplayBatches int `json:"replay_batches"`
}

// maxPause bounds the times of Faults, in seconds.
const maxPause = 3600

// Validate checks faults.
func (f Faults) Validate() error {
	if min(f.DropEvery, f.DuplicateEvery, f.GarbageEvery, f.ReplayBatches) < 0 {
		return fmt.Errorf("KV event faults: numbers of batches must not be negative")
	}
	for _, s := range []float64{f.DelaySeconds, f.PauseSeconds} {
		if !(s >= 0) || s > maxPause {
			return fmt.Errorf("KV event faults: times must be 0 to %d s, not %v", maxPause, s)
		}
	}
	return nil
}

// Publisher publishes the batches of one engine. Run runs it.
type Publisher struct {
	cfg    Config
	faults func() Faults
	pub    zmtp.Publisher
	queue  chan queued

	mu     sync.Mutex
	next   uint64    // sequence number
	buffer []sent    // the latest batches, oldest first; bounded by BufferSteps once trimmed
	bound  [2]string // endpoints with the ports that they listen on
}

// queued is a batch that is not sent yet.
type queued struct {
	payload []byte
	at      time.Time
}

// sent is a batch that can be replayed.
type sent struct {
	seq     uint64
	payload []byte
}

// New returns a publisher of an enabled config. faults returns the faults of now and is called on
// any goroutine.
func New(c Config, faults func() Faults) (*Publisher, error) {
	c = c.withDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("KV events: %w", err)
	}
	p := &Publisher{cfg: c, faults: faults, queue: make(chan queued, c.MaxQueue)}
	p.pub.HighWater = c.HighWater
	return p, nil
}

// Publish queues a batch. It waits while MaxQueue batches are queued, until ctx ends.
func (p *Publisher) Publish(ctx context.Context, payload []byte) {
	select {
	case p.queue <- queued{payload, time.Now()}:
	case <-ctx.Done():
	}
}

// Run publishes until ctx ends, when it returns nil. It fails if it cannot listen.
func (p *Publisher) Run(ctx context.Context) error {
	var config net.ListenConfig
	listen := func(i int, endpoint string) (net.Listener, error) {
		a, err := address(endpoint)
		if err != nil {
			return nil, fmt.Errorf("KV events: %w", err)
		}
		l, err := config.Listen(ctx, "tcp", a)
		if err != nil {
			return nil, fmt.Errorf("KV events: %w", err)
		}
		p.mu.Lock()
		p.bound[i] = "tcp://" + l.Addr().String()
		p.mu.Unlock()
		return l, nil
	}
	g, ctx := errgroup.WithContext(ctx)
	if listens(p.cfg.Endpoint) {
		l, err := listen(0, p.cfg.Endpoint)
		if err != nil {
			return err
		}
		g.Go(func() error { return p.pub.Serve(ctx, l) })
	} else {
		a, err := address(p.cfg.Endpoint)
		if err != nil {
			return fmt.Errorf("KV events: %w", err)
		}
		g.Go(func() error { return p.pub.Connect(ctx, a) })
	}
	if p.cfg.ReplayEndpoint != "" {
		g.Go(func() error {
			l, err := listen(1, p.cfg.ReplayEndpoint)
			if err != nil {
				return err
			}
			return zmtp.ServeRouter(ctx, l, p.replay)
		})
	}
	g.Go(func() error {
		p.send(ctx)
		return nil
	})
	return g.Wait()
}

// Config returns the config with the addresses on which the sockets listen, once they do.
func (p *Publisher) Config() Config {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.cfg
	if p.bound[0] != "" {
		c.Endpoint = p.bound[0]
	}
	if p.bound[1] != "" {
		c.ReplayEndpoint = p.bound[1]
	}
	return c
}

// Restart is a fault: sequence numbers begin at 0 again, no earlier batch can be replayed and
// the subscribers lose their connections, as if the engine had been started anew.
func (p *Publisher) Restart() {
	p.mu.Lock()
	p.next, p.buffer = 0, nil
	p.mu.Unlock()
	p.pub.Disconnect()
}

// send sends queued batches until ctx ends.
func (p *Publisher) send(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sleep := func(d time.Duration) bool {
		if d <= 0 {
			return ctx.Err() == nil
		}
		timer.Reset(d)
		select {
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for {
		select {
		case q := <-p.queue:
			f := p.faults()
			if !sleep(time.Until(q.at.Add(seconds(f.DelaySeconds)))) {
				return
			}
			p.sendNow(q.payload, f)
			if !sleep(seconds(f.PauseSeconds)) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// sendNow sends the next batch and keeps it for replays.
func (p *Publisher) sendNow(payload []byte, f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock() // Restart must not come between number and message
	seq := p.next
	p.next++
	nth := func(every int) bool { return every > 0 && (seq+1)%uint64(every) == 0 }
	if nth(f.GarbageEvery) {
		payload = []byte("\xc1 is never used by MessagePack")
	}
	p.buffer = append(p.buffer, sent{seq, payload})
	if len(p.buffer) >= 2*p.cfg.BufferSteps { // seldom, so that its cost is constant per batch
		p.buffer = append(make([]sent, 0, 2*p.cfg.BufferSteps), p.buffer[len(p.buffer)-p.cfg.BufferSteps:]...)
	}
	copies := 1
	switch {
	case nth(f.DropEvery):
		copies = 0
	case nth(f.DuplicateEvery):
		copies = 2
	}
	for range copies {
		p.pub.Publish([]byte(p.cfg.Topic), binary.BigEndian.AppendUint64(nil, seq), payload)
	}
}

// replay answers a replay request. Like vLLM it ignores requests that do not have two frames.
func (p *Publisher) replay(frames [][]byte, reply zmtp.Reply) {
	if len(frames) != 2 || len(frames[1]) > 8 {
		return
	}
	var start uint64
	for _, b := range frames[1] {
		start = start<<8 | uint64(b)
	}
	f := p.faults()
	p.mu.Lock()
	batches := p.buffer[max(0, len(p.buffer)-p.cfg.BufferSteps):]
	p.mu.Unlock()
	n := 0
	for _, b := range batches { // nothing changes a slice of the buffer
		if b.seq < start {
			continue
		}
		if f.ReplayBatches > 0 && n == f.ReplayBatches {
			return
		}
		if reply(nil, []byte(p.cfg.Topic), binary.BigEndian.AppendUint64(nil, b.seq), b.payload) != nil {
			return
		}
		n++
	}
	if f.ReplayBatches == 0 {
		_ = reply(nil, nil, binary.BigEndian.AppendUint64(nil, 1<<64-1), nil)
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
