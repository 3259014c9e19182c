package blocktable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Bounds of the two sockets.
const (
	maxMessage = 16 << 20        // bytes; the ids of a million tokens are 3 MB
	maxStreams = 1024            // calls at once on one connection
	handTime   = 5 * time.Second // to hand the memory to a client
	retryTime  = time.Second     // after a connection that could not be accepted
	dialTime   = time.Second     // to see whether a socket's engine lives
	setupTime  = 5 * time.Second // for a client to begin with HTTP/2
)

// Run serves until ctx is done, and removes the sockets. It may be called once.
func (t *Table) Run(ctx context.Context) error {
	if err := prepare(t.cfg.Dir); err != nil {
		return fmt.Errorf("block table: %w", err)
	}
	calls, err := t.listen(BlocksSocket)
	if err != nil {
		return fmt.Errorf("block table: %w", err)
	}
	defer calls.Close()
	memory, err := t.listen(PoolSocket)
	if err != nil {
		return fmt.Errorf("block table: %w", err)
	}
	defer memory.Close()

	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(setupTime), grpc.WaitForHandlers(true))
	api.RegisterBlocksServer(server, t)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := server.Serve(calls)
		if errors.Is(err, grpc.ErrServerStopped) {
			return nil // ctx ended before it began
		}
		return err
	})
	group.Go(func() error { return t.hand(ctx, memory) })
	group.Go(func() error {
		<-ctx.Done()
		memory.Close()
		server.Stop()
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("block table: %w", err)
	}
	return nil
}

// prepare makes the directory, or checks that no other user can change it.
func prepare(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by other users (mode %04o); chmod 700 it", dir, info.Mode().Perm())
	}
	return nil
}

// listener is a Unix socket that only the own user gets through to.
type listener struct {
	*net.UnixListener
	table *Table
	path  string
	made  os.FileInfo // the socket's file, to remove no other's
}

// listen makes a socket, in place of one that nobody serves any more.
func (t *Table) listen(name string) (*listener, error) {
	path := filepath.Join(t.cfg.Dir, name)
	if _, err := os.Lstat(path); err == nil {
		c, err := net.DialTimeout("unix", path, dialTime)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("%s is served by another engine; every engine needs a directory of its own", path)
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return nil, fmt.Errorf("whether another engine serves %s: %w", path, err) // it may live
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then another engine may have replaced it
	made, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &listener{UnixListener: l, table: t, path: path, made: made}, nil
}

// Accept returns the next connection of the own user.
func (l *listener) Accept() (net.Conn, error) { return l.next() }

func (l *listener) next() (*net.UnixConn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peer(c)
		if err == nil && uid == os.Geteuid() {
			return c, nil
		}
		l.table.cfg.Logger.Warn("block table: a client is turned away", "socket", l.path, "uid", uid, "error", err)
		c.Close()
	}
}

// Close stops listening and removes the socket. More calls do nothing.
func (l *listener) Close() error {
	if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
		os.Remove(l.path)
	}
	err := l.UnixListener.Close()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// hand gives the pool's memory to whoever connects.
func (t *Table) hand(ctx context.Context, l *listener) error {
	for {
		c, err := l.next()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err != nil: // out of descriptors, for instance: later there may be some
			t.cfg.Logger.Warn("block table: a client was not accepted", "error", err)
			select {
			case <-time.After(retryTime):
			case <-ctx.Done():
			}
			continue
		}
		// What is sent fits the socket's buffer: this waits for nobody.
		c.SetDeadline(time.Now().Add(handTime))
		if err := share(c, t.cfg.Pool); err != nil {
			t.cfg.Logger.Warn("block table: the memory was not handed over", "error", err)
		}
		c.Close()
	}
}

// inDevice is the first byte of the message that hands over memory on a device; that
// of shared memory is 0.
const inDevice = 'g'

// share sends what a client needs to reach the pool: the protocol of engine/api.
func share(c *net.UnixConn, p *kv.Pool) error {
	handle, f, err := p.Share()
	if err != nil {
		return err
	}
	message := []byte{0}
	if handle != nil {
		message = append([]byte{inDevice}, handle...)
	}
	var rights []byte
	if f != nil {
		if handle != nil {
			defer f.Close()
		}
		rights = unix.UnixRights(int(f.Fd()))
	}
	_, _, err = c.WriteMsgUnix(message, rights, nil)
	return err
}
