package zmtp

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"
)

// redialPause is the time between two attempts to connect, ZeroMQ's default.
const redialPause = 100 * time.Millisecond

// Publisher is a PUB socket. The zero value has no subscribers; HighWater is set before Run.
type Publisher struct {
	// HighWater is how many messages wait for one subscriber at most, at least 1. Further ones
	// are lost for it without a sign, as with ZeroMQ.
	HighWater int

	mu          sync.Mutex
	subscribers map[*subscriber]struct{}
}

// subscriber is one connection of a publisher.
type subscriber struct {
	conn  net.Conn
	queue chan [][]byte
	// topics are the prefixes of the first frames that it wants, with one entry per
	// subscription. Guarded by Publisher.mu.
	topics [][]byte
}

// Publish sends a message to the subscribers whose topics match its first frame. It never blocks, may be
// called at any time, and keeps the frames, which must not change any more.
func (p *Publisher) Publish(frames ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subscribers {
		if !slices.ContainsFunc(s.topics, func(topic []byte) bool { return bytes.HasPrefix(frames[0], topic) }) {
			continue
		}
		select {
		case s.queue <- frames:
		default:
		}
	}
}

// Disconnect closes the connections of all subscribers.
func (p *Publisher) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subscribers {
		s.conn.Close()
	}
}

// Serve accepts subscribers until ctx ends, when it returns nil. It closes the listener.
func (p *Publisher) Serve(ctx context.Context, l net.Listener) error {
	return serve(ctx, l, func(ctx context.Context, nc net.Conn) { _ = p.serveConn(ctx, nc) })
}

// Connect connects to a subscriber that listens, again and again until ctx ends, when it returns nil.
func (p *Publisher) Connect(ctx context.Context, address string) error {
	for ctx.Err() == nil {
		dialer := net.Dialer{Timeout: handshakeTimeout}
		if nc, err := dialer.DialContext(ctx, "tcp", address); err == nil {
			_ = p.serveConn(ctx, nc)
		}
		select {
		case <-time.After(redialPause):
		case <-ctx.Done():
		}
	}
	return nil
}

// serveConn serves one subscriber until it goes or ctx ends, and closes the connection.
func (p *Publisher) serveConn(ctx context.Context, nc net.Conn) error {
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	c, err := open(nc, serverSide, "PUB", "SUB", "XSUB")
	if err != nil {
		return err
	}
	s := &subscriber{conn: nc, queue: make(chan [][]byte, p.HighWater)}
	c.command = func(body []byte) error { return p.handleCommand(s, body) }
	p.mu.Lock()
	if p.subscribers == nil {
		p.subscribers = make(map[*subscriber]struct{})
	}
	p.subscribers[s] = struct{}{}
	p.mu.Unlock()
	over := make(chan struct{}) // closed when nothing is read any more
	var writer sync.WaitGroup
	writer.Go(func() {
		for {
			select {
			case frames := <-s.queue:
				if err := c.Send(frames...); err != nil {
					c.Close()
					return
				}
			case <-over:
				return
			}
		}
	})
	for err == nil {
		var frames [][]byte
		if frames, err = c.Receive(0); err == nil {
			err = p.handleMessage(s, frames[0])
		}
	}
	c.Close()
	close(over)
	writer.Wait()
	p.mu.Lock()
	delete(p.subscribers, s)
	p.mu.Unlock()
	return err
}

// handleCommand applies a subscription or its end as ZMTP 3.1 sends it.
func (p *Publisher) handleCommand(s *subscriber, body []byte) error {
	if topic, ok := bytes.CutPrefix(body, []byte("\x09SUBSCRIBE")); ok {
		return p.subscribe(s, topic)
	}
	if topic, ok := bytes.CutPrefix(body, []byte("\x06CANCEL")); ok {
		p.cancel(s, topic)
	}
	return nil
}

// handleMessage applies a subscription or its end as older peers send it.
func (p *Publisher) handleMessage(s *subscriber, body []byte) error {
	if topic, ok := bytes.CutPrefix(body, []byte{1}); ok {
		return p.subscribe(s, topic)
	}
	if topic, ok := bytes.CutPrefix(body, []byte{0}); ok {
		p.cancel(s, topic)
	}
	return nil
}

func (p *Publisher) subscribe(s *subscriber, topic []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(s.topics) == maxTopics {
		return errors.New("too many subscriptions")
	}
	s.topics = append(s.topics, bytes.Clone(topic))
	return nil
}

func (p *Publisher) cancel(s *subscriber, topic []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := slices.IndexFunc(s.topics, func(t []byte) bool { return bytes.Equal(t, topic) }); at >= 0 {
		s.topics = slices.Delete(s.topics, at, at+1)
	}
}

// maxTopics bounds the subscriptions of one subscriber.
const maxTopics = 64
