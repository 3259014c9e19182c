package pull

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	// HelloTimeout bounds a connection until its ticket has been answered: connect,
	// authenticate, send the hello, receive the welcome.
	HelloTimeout = 5 * time.Second
	// MaxSessions bounds the open pulls of one source.
	MaxSessions = 256

	acceptPause = 100 * time.Millisecond // before the next Accept after one that failed
)

// Serve accepts connections until ctx ends and runs session for each of them, at most
// MaxSessions at a time. It closes a connection when its session returns or ctx ends, and
// returns after the last session. name is the transport's name, for the log.
func Serve(ctx context.Context, l net.Listener, name string, logger *slog.Logger, session func(context.Context, net.Conn) error) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	running := make(chan struct{}, MaxSessions)
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return
		}
		if err != nil {
			logger.Warn("accepting a receiver failed", "transport", name, "retry", acceptPause, "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case running <- struct{}{}:
		default:
			logger.Warn("rejected a receiver: too many open pulls", "transport", name, "limit", MaxSessions)
			conn.Close()
			continue
		}
		sessions.Go(func() {
			defer func() { <-running }()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := session(ctx, conn); err != nil {
				logger.Debug("session ended", "transport", name, "peer", conn.RemoteAddr(), "err", err)
			}
		})
	}
}

// InterruptConn runs f, which uses conn, and makes its reads and writes fail when ctx
// ends. The error is that of ctx then.
func InterruptConn(ctx context.Context, conn net.Conn, f func() error) error {
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() || err != nil {
		return Cause(ctx, err)
	}
	return nil
}
