package lease

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

const (
	// HelloTimeout bounds a connection until its ticket has been answered: connect,
	// authenticate, send the hello, receive the welcome.
	HelloTimeout = 5 * time.Second
	acceptPause  = 100 * time.Millisecond // before the next Accept after one that failed
)

// Session serves one connection of a receiver. It calls admit once the receiver's ticket is
// redeemed, and returns the error of admit.
type Session func(ctx context.Context, c net.Conn, admit func() error) error

// Serve accepts connections until ctx ends and runs session for each of them, within the bounds of
// an Admission. It closes a connection when its session returns, when ctx ends, or when it has
// presented no ticket and others need its place; it returns after the last session. name is the
// transport's name, for the log.
func Serve(ctx context.Context, l net.Listener, name string, logger *slog.Logger, session Session) {
	var admission Admission
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
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
		counted := admission.Enter(conn.RemoteAddr(), func() { conn.Close() })
		sessions.Go(func() {
			defer counted.Leave()
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { conn.Close() })()
			if err := session(ctx, conn, counted.Admit); err != nil {
				logger.Debug("session ended", "transport", name, "peer", conn.RemoteAddr(), "err", err)
			}
		})
	}
}

// refuseOn returns what sends a refusal on a connection.
func refuseOn(c net.Conn) func([]byte) error {
	return func(b []byte) error { _, err := c.Write(b); return err }
}

// CheckPlaintext returns why plain text must not be sent to an address: it is not
// loopback.
func CheckPlaintext(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
		return errors.New("the address is not loopback, and no TLS is configured")
	}
	return nil
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
