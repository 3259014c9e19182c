package shm

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/migrator/transport/ticket"
	"github.com/cascadeinfer/cascade/migrator/transport/wire"
)

// server is the source's socket.
type server struct {
	config   Config
	book     *ticket.Book
	listener *net.UnixListener
	path     string
}

func listen(c Config, b *ticket.Book) (*server, error) {
	if err := private(c.Dir); err != nil {
		return nil, err
	}
	sweep(c.Dir)
	name := make([]byte, 6)
	rand.Read(name) // never fails
	path := filepath.Join(c.Dir, hex.EncodeToString(name)+suffix)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return &server{config: c, book: b, listener: l, path: path}, nil
}

// acceptPause is how long a source that is out of descriptors waits.
const acceptPause = 100 * time.Millisecond

// serve takes receivers until ctx ends, and returns after the last session.
func (s *server) serve(ctx context.Context) error {
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
			s.config.Logger.Warn("shm transport: no new connections for a moment", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			s.config.Logger.Warn("shm transport: a receiver is turned away, too many are at work", "bound", maxSessions)
			conn.Close()
			continue
		}
		sessions.Go(func() {
			defer func() { <-slots }()
			defer conn.Close()
			if err := s.session(ctx, conn); err != nil {
				s.config.Logger.Debug("shm transport: session", "err", err)
			}
		})
	}
}

// session serves one receiver until its connection or its lease ends.
func (s *server) session(ctx context.Context, conn *net.UnixConn) error {
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

	over, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-lease.Done():
			conn.Close()
		case <-over:
		}
	}()
	defer func() { close(over); <-gone }()

	if err := welcome(conn, lease); err != nil {
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

// checkSize is the length of a check in bytes.
const checkSize = 8

// welcome sends the layout and the descriptor of a lease's memory.
func welcome(conn *net.UnixConn, lease *ticket.Lease) error {
	m := lease.Memory
	packet, err := wire.AppendWelcome(nil, m.Layout, int64(len(m.Bytes)))
	if err != nil {
		return err
	}
	f, err := readOnly(m)
	if err != nil {
		return err
	}
	defer f.Close()
	if !lease.Enter(time.Now()) {
		return nil
	}
	defer lease.Leave()
	_, _, err = conn.WriteMsgUnix(packet, unix.UnixRights(int(f.Fd())), nil)
	return err
}
