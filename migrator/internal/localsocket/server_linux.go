package localsocket

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/internal/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport/wire"
)

// The bounds of every boundary.
const (
	helloTimeout = 5 * time.Second        // for a receiver to present its ticket, and for a source to answer
	checkTimeout = 5 * time.Second        // for a source to answer a check
	maxSessions  = 256                    // open moves of one source
	acceptPause  = 100 * time.Millisecond // that a source waits which is out of descriptors

	// MaxPath is the longest path of a socket in bytes; the kernel takes 107.
	MaxPath = 100
	// NameLength is that of a socket in its directory, the slash included, without
	// its suffix.
	NameLength = 13
	// MaxExtra is the longest that a transport adds to a welcome.
	MaxExtra = 1024

	checkSize = 8 // bytes of a check
)

// Welcome says what a receiver needs to reach the memory of a lease: bytes of the
// transport's own, at most MaxExtra, and a descriptor or nil, which is closed.
type Welcome func(*ticket.Lease) (extra []byte, f *os.File, err error)

// Server is a source's socket.
type Server struct {
	// Path is where receivers find it.
	Path string

	book     *ticket.Book
	welcome  Welcome
	logger   *slog.Logger
	name     string
	listener *net.UnixListener
}

// Listen makes a socket for the leases of a book in a directory, which is made
// private. The suffix of its name, with the dot, tells the sockets of one transport
// from others; it is also the transport's name for errors. Serve must be called.
func Listen(dir, suffix string, book *ticket.Book, welcome Welcome, logger *slog.Logger) (*Server, error) {
	if err := Private(dir); err != nil {
		return nil, err
	}
	sweep(dir, suffix)
	name := make([]byte, 6)
	rand.Read(name) // never fails
	path := filepath.Join(dir, hex.EncodeToString(name)+suffix)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return &Server{Path: path, book: book, welcome: welcome, logger: logger, name: suffix[1:] + " transport", listener: l}, nil
}

// Serve takes receivers until ctx ends, and returns after the last session.
func (s *Server) Serve(ctx context.Context) error {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	defer s.listener.Close()
	slots := make(chan struct{}, maxSessions)
	for {
		conn, err := s.listener.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			s.logger.Warn(s.name+": no new connections for a moment", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			s.logger.Warn(s.name+": a receiver is turned away, too many are at work", "bound", maxSessions)
			conn.Close()
			continue
		}
		sessions.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := s.session(ctx, conn); err != nil {
				s.logger.Debug(s.name+": session", "err", err)
			}
		})
	}
}

// session serves one receiver until its connection or its lease ends.
func (s *Server) session(ctx context.Context, conn *net.UnixConn) error {
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := sameUser(conn); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return err
	}
	packet := make([]byte, wire.MaxHello+1)
	n, err := conn.Read(packet)
	if err != nil {
		return err
	}
	hello, err := wire.ReadHello(bytes.NewReader(packet[:n]))
	if err != nil {
		return err
	}
	lease, err := s.book.Redeem(hello.Ticket, hello.Receiver, time.Now())
	if err != nil {
		conn.Write(wire.AppendRefusal(nil))
		return fmt.Errorf("receiver %s: %w", hello.Receiver, err)
	}
	defer lease.End()

	defer lease.Cut(conn)()

	if err := s.greet(conn, lease); err != nil {
		return err
	}
	if err := conn.SetDeadline(lease.Deadline); err != nil {
		return err
	}
	for {
		n, err := conn.Read(packet)
		if err != nil || n != checkSize {
			return err
		}
		if !lease.Enter(time.Now()) {
			return nil
		}
		_, err = conn.Write(packet[:n])
		lease.Leave()
		if err != nil {
			return err
		}
	}
}

// greet sends what a receiver needs to reach a lease's memory.
func (s *Server) greet(conn *net.UnixConn, lease *ticket.Lease) error {
	m := lease.Memory
	packet, err := wire.AppendWelcome(nil, m.Layout, m.Size())
	if err != nil {
		return err
	}
	extra, f, err := s.welcome(lease)
	if err != nil {
		return err
	}
	var rights []byte
	if f != nil {
		defer f.Close()
		rights = unix.UnixRights(int(f.Fd()))
	}
	if !lease.Enter(time.Now()) {
		return nil
	}
	defer lease.Leave()
	_, _, err = conn.WriteMsgUnix(append(packet, extra...), rights, nil)
	return err
}
