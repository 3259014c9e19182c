package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"
)

// prepareTimeout bounds Config.Settle.
const prepareTimeout = 10 * time.Second

// Config is what Serve needs.
type Config struct {
	// Listeners are the sockets to hand over. Required.
	Listeners *Listeners
	// Prepare is called when a successor has asked, before it gets the sockets:
	// to end what no two processes can share. It is over when it returns, or
	// within ten seconds, when ctx ends. nil does nothing.
	Prepare func(ctx context.Context)
	// Resume is called when a successor that was settled for has failed. nil
	// does nothing.
	Resume func()
	// Stopped is called when the successor accepts, after the doors were left and
	// before the successor is told: to end, within seconds, what it goes on
	// with. nil does nothing.
	Stopped func()
	// Logger takes what an operator should know; nil discards.
	Logger *slog.Logger
}

// Server is a process's place at its path. Its methods are for one goroutine.
type Server struct {
	path string
	l    *net.UnixListener // nil where the system has no hand-over, and after one
	file os.FileInfo       // of the socket
}

// newServer puts a socket of this process at the path, whatever is there.
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

// Serve waits for a successor and hands the doors over to it. It returns nil
// once the doors are left: from then on this process is to end what it has, and
// nothing else. The link, the caller's to close, leads to the successor. It
// returns the context's cause when ctx ends first, and then the path is free.
func (p *Server) Serve(ctx context.Context, cfg Config) (*Link, error) {
	if cfg.Listeners == nil {
		return nil, errors.New("hand-over: Doors is nil")
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
			<-closed // before that, whoever dials still reaches it
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
		if err != nil {
			return nil, fmt.Errorf("hand-over: %s: %w", p.path, err)
		}
		err = p.handOver(ctx, conn, cfg)
		if err == nil {
			// The successor, who has the lock, puts its socket in this one's place.
			l.Close()
			p.l = nil
			return newLink(conn), nil
		}
		conn.Close()
		cfg.Logger.Warn("a hand-over failed; this process goes on", "error", err)
	}
}

// Close frees the path, unless another process has taken it or is about to.
func (p *Server) Close() {
	if p.l == nil {
		return
	}
	p.l.Close()
	// Under the lock nobody puts a socket of its own there meanwhile.
	f, err := tryLock(p.path)
	if err != nil {
		return
	}
	defer f.Close()
	if now, err := os.Lstat(p.path); err == nil && os.SameFile(now, p.file) {
		os.Remove(p.path)
	}
}

// handOver talks to one successor. Its error says that the doors are as they
// were.
func (p *Server) handOver(ctx context.Context, conn *net.UnixConn, cfg Config) error {
	hurry := context.AfterFunc(ctx, func() { conn.Close() })
	defer hurry()
	if err := checkPeer(conn); err != nil {
		return err
	}
	m, _, err := receive(conn, "ask", stepTimeout)
	if err != nil {
		// It may be there to read why.
		_ = send(conn, packet{Step: "refused", Reason: err.Error()})
		return err
	}
	cfg.Logger.Info("a new process takes over", "process", m.Process)
	if cfg.Prepare != nil {
		settling, cancel := context.WithTimeout(ctx, prepareTimeout)
		cfg.Prepare(settling)
		cancel()
	}
	if err := p.sendListeners(conn, cfg.Listeners); err != nil {
		if cfg.Resume != nil {
			cfg.Resume()
		}
		return err
	}
	hurry() // Left may end ctx, and the successor is still to be told
	cfg.Listeners.StopAccepting()
	if cfg.Stopped != nil {
		cfg.Stopped()
	}
	// Whether it hears this or not, it accepts, and this process no more.
	_ = send(conn, packet{Step: "left"})
	return nil
}

// sendListeners sends the sockets and waits until they are served.
func (p *Server) sendListeners(conn *net.UnixConn, d *Listeners) error {
	names, files, err := d.files()
	if err != nil {
		_ = send(conn, packet{Step: "refused", Reason: err.Error()})
		return err
	}
	defer closeAll(files)
	if err := send(conn, packet{Step: "doors", Process: os.Getpid(), Listeners: names}, files...); err != nil {
		return err
	}
	closeAll(files)
	_, _, err = receive(conn, "ready", readyTimeout)
	return err
}
