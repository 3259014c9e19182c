package blocktable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
)

// Limits and timeouts of the two sockets.
const (
	maxMessage       = 16 << 20        // bytes; the ids of a million tokens are 3 MB
	maxStreams       = 1024            // concurrent calls on one connection
	sendTimeout      = 5 * time.Second // to send the memory to a client
	acceptRetryDelay = time.Second     // after a connection could not be accepted
	dialTimeout      = time.Second     // to check whether a socket's engine is alive
	setupTimeout     = 5 * time.Second // for a client to start HTTP/2
)

// Run serves until ctx ends, and removes the sockets. It may be called once.
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
		grpc.MaxConcurrentStreams(maxStreams), grpc.ConnectionTimeout(setupTimeout), grpc.WaitForHandlers(true))
	api.RegisterBlocksServer(server, t)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		err := server.Serve(calls)
		if errors.Is(err, grpc.ErrServerStopped) {
			return nil // ctx ended before Run
		}
		return err
	})
	group.Go(func() error { return t.serveMemory(ctx, memory) })
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

// prepare creates the directory, or checks that it belongs to this user and that no other user may
// enter it.
func prepare(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d; choose a directory of user %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s is open to other users (mode %04o); chmod 700 it", dir, st.Mode&0o7777)
	}
	return nil
}

// listener is a Unix socket that accepts only connections of the same user.
type listener struct {
	*net.UnixListener
	table *Table
	user  int // whose connections it accepts
	path  string
	made  os.FileInfo // the socket's file, to avoid removing another one
}

// listen creates a socket and replaces a stale one.
func (t *Table) listen(name string) (*listener, error) {
	path := filepath.Join(t.cfg.Dir, name)
	if _, err := os.Lstat(path); err == nil {
		c, err := net.DialTimeout("unix", path, dialTimeout)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("another engine serves %s; use a directory per engine", path)
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			return nil, fmt.Errorf("check whether another engine serves %s: %w", path, err) // it may be alive
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // another engine may have replaced it by then
	made, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &listener{UnixListener: l, table: t, user: os.Geteuid(), path: path, made: made}, nil
}

// Accept returns the next connection of the same user.
func (l *listener) Accept() (net.Conn, error) { return l.next() }

func (l *listener) next() (*net.UnixConn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUser(c)
		if err == nil && uid == l.user {
			return c, nil
		}
		l.table.cfg.Logger.Warn("block table: a client is turned away", "socket", l.path, "uid", uid, "error", err)
		c.Close()
	}
}

// peerUser returns the user of a connection's peer, or -1 and an error.
func peerUser(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	uid := -1 // 0 is root
	failed := raw.Control(func(fd uintptr) { uid, err = userOf(int(fd)) })
	return uid, errors.Join(failed, err)
}

// Close stops listening and removes the socket. Further calls do nothing.
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

// serveMemory sends the pool's memory to every client that connects.
func (t *Table) serveMemory(ctx context.Context, l *listener) error {
	for {
		c, err := l.next()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err != nil: // out of descriptors, for instance: retry later
			t.cfg.Logger.Warn("block table: a client was not accepted", "error", err)
			select {
			case <-time.After(acceptRetryDelay):
			case <-ctx.Done():
			}
			continue
		}
		// The message fits into the socket's buffer: this does not block.
		c.SetDeadline(time.Now().Add(sendTimeout))
		if err := sendMemory(c, t.cfg.Pool); err != nil {
			t.cfg.Logger.Warn("block table: sending the memory failed", "error", err)
		}
		c.Close()
	}
}

// inDevice is the first byte of a message with device memory; that of shared memory is 0.
const inDevice = 'g'

// sendMemory sends the pool's memory as engine/api specifies.
func sendMemory(c *net.UnixConn, p *kv.Pool) error {
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
