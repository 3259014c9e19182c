package blocktable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/engine/emulator/kv"
	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// Limits and timeouts of the two sockets.
const (
	maxMessage       = 16 << 20        // bytes; the ids of a million tokens are 3 MB
	maxStreams       = 1024            // concurrent calls on one connection
	sendTimeout      = 5 * time.Second // to send the memory to a client
	acceptRetryDelay = time.Second     // after a connection could not be accepted
	setupTimeout     = 5 * time.Second // for a client to start HTTP/2
)

// Run serves until ctx ends, and removes the sockets. It may be called once.
func (t *Table) Run(ctx context.Context) error {
	if err := unixsocket.PrepareDir(t.cfg.Dir); err != nil {
		return fmt.Errorf("block table: %w", err)
	}
	calls, err := unixsocket.Listen(filepath.Join(t.cfg.Dir, BlocksSocket), t.cfg.Logger)
	if err != nil {
		return fmt.Errorf("block table: %w", err)
	}
	defer calls.Close()
	memory, err := unixsocket.Listen(filepath.Join(t.cfg.Dir, PoolSocket), t.cfg.Logger)
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

// serveMemory sends the pool's memory to every client that connects.
func (t *Table) serveMemory(ctx context.Context, l *unixsocket.Listener) error {
	for {
		c, err := l.AcceptUser()
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
