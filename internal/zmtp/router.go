package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// maxPeers bounds the connections of one listener; further ones are closed.
const maxPeers = 64

// Reply sends a message to the peer that asked.
type Reply func(frames ...[]byte) error

// ServeRouter serves a ROUTER socket for DEALER and REQ peers until ctx ends, when it returns nil. It closes
// the listener. handle gets each message without the peer's identity, with up to MaxFrames frames that
// are valid until it returns, on a goroutine of the peer; an error of reply means that the peer is gone.
func ServeRouter(ctx context.Context, l net.Listener, handle func(frames [][]byte, reply Reply)) error {
	return serve(ctx, l, func(ctx context.Context, nc net.Conn) {
		defer context.AfterFunc(ctx, func() { nc.Close() })()
		c, err := open(nc, serverSide, "ROUTER", "DEALER", "REQ", "ROUTER")
		if err != nil {
			return
		}
		defer c.Close()
		for {
			frames, err := c.Receive(0)
			if err != nil {
				return
			}
			handle(frames, c.Send)
		}
	})
}

// serve calls handle for each connection, on a goroutine of its own, until ctx ends. It returns when all calls have.
func serve(ctx context.Context, l net.Listener, handle func(context.Context, net.Conn)) error {
	ctx, cancel := context.WithCancel(ctx)
	var peers sync.WaitGroup
	defer peers.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	places := make(chan struct{}, maxPeers)
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("ZeroMQ socket %s: %w", l.Addr(), err)
		case err != nil: // out of file descriptors, say
			select {
			case <-time.After(redialPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case places <- struct{}{}:
			peers.Go(func() {
				defer func() { <-places }()
				handle(ctx, nc)
			})
		default:
			nc.Close()
		}
	}
}
