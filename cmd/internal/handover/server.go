package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

// acceptRetry is the time between two attempts to accept a successor while the process has no descriptor left.
const acceptRetry = 100 * time.Millisecond

// Config configures Serve.
type Config struct {
	// Listeners are the sockets to hand over. Required.
	Listeners *Listeners
	// Stopped is called when the successor accepts, after this process has stopped accepting and
	// before the successor receives the last packet. It ends, within seconds, the tasks that the
	// successor, whose process id it gets, continues. nil does nothing.
	Stopped func(successor int)
	// Logger logs events for operators; nil discards them.
	Logger *slog.Logger
}

// Server serves a path to the successors of this process. Only one goroutine may use it.
type Server struct {
	path string
	l    *net.UnixListener // nil if the system does not support handover, and after a handover
	file os.FileInfo       // of the socket
}

// newServer listens at the path, in place of any socket there.
func newServer(path string) (*Server, error) {
	at := path + temporarySuffix
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: at, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	p := &Server{path: path, l: l}
	if err = os.Rename(at, path); err == nil {
		p.file, err = os.Lstat(path)
	}
	if err != nil {
		l.Close()
		return nil, err
	}
	return p, nil
}

// Serve waits for a successor and hands the listeners over to it. It returns a nil error once this
// process has stopped accepting: from then on the process should only finish its running work. The
// caller closes the link, which leads to the successor. If ctx ends first, Serve frees the path and
// returns the context's cause.
func (p *Server) Serve(ctx context.Context, cfg Config) (*Link, error) {
	if cfg.Listeners == nil {
		return nil, errors.New("handover: Config.Listeners is nil")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if p.l == nil {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	defer p.Close()
	l := p.l
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { l.Close(); close(closed) })
	defer func() {
		if !stop() {
			<-closed // until then a dial succeeds
		}
	}()
	for {
		conn, err := l.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			// The successor, which waits, may be the one with a higher limit.
			cfg.Logger.Warn("handover delayed: no file descriptor is left", "error", err)
			select {
			case <-time.After(acceptRetry):
			case <-ctx.Done():
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("handover: %s: %w", p.path, err)
		}
		err = p.handOver(ctx, conn, cfg)
		if err == nil {
			// The successor has the lock, and replaces this socket by its own.
			l.Close()
			p.l = nil
			return newLink(conn), nil
		}
		conn.Close()
		cfg.Logger.Warn("handover failed, this process continues to serve", "error", err)
	}
}

// Close frees the path, unless another process has taken it or is about to.
func (p *Server) Close() {
	if p.l == nil {
		return
	}
	p.l.Close()
	// The lock keeps other processes from replacing the socket meanwhile.
	f, err := tryLock(p.path)
	if err != nil {
		return
	}
	defer f.Close()
	if now, err := os.Lstat(p.path); err == nil && os.SameFile(now, p.file) {
		os.Remove(p.path)
	}
}

// handOver hands the listeners over to one successor. After an error they are
// unchanged.
func (p *Server) handOver(ctx context.Context, conn *net.UnixConn, cfg Config) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := unixsocket.CheckPeer(conn); err != nil {
		return fmt.Errorf("sockets are handed over to processes of the same user only: %w", err)
	}
	m, _, err := receive(conn, "ask", stepTimeout)
	if err != nil {
		// The successor may still read the reason.
		_ = send(conn, packet{Step: "refused", Reason: err.Error()})
		return err
	}
	cfg.Logger.Info("new process requested the listeners", "process", m.Process)
	if err := p.sendListeners(conn, cfg.Listeners); err != nil {
		return err
	}
	stop() // Stopped may end ctx, but the successor must still get the last packet
	cfg.Listeners.StopAccepting()
	if cfg.Stopped != nil {
		cfg.Stopped(m.Process)
	}
	// Whether or not the successor receives this, it accepts, and this process does not.
	_ = send(conn, packet{Step: "stopped"})
	return nil
}

// sendListeners sends the sockets and waits until the successor serves them.
func (p *Server) sendListeners(conn *net.UnixConn, d *Listeners) error {
	names, sockets, err := d.duplicate()
	if err != nil {
		_ = send(conn, packet{Step: "refused", Reason: err.Error()})
		return err
	}
	err = send(conn, packet{Step: "listeners", Process: os.Getpid(), Listeners: names}, sockets...)
	for _, fd := range sockets {
		unix.Close(fd)
	}
	if err != nil {
		return err
	}
	_, _, err = receive(conn, "ready", readyTimeout)
	return err
}
