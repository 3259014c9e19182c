package lease

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
)

const (
	checkTimeout = 5 * time.Second // for a source to answer a check

	// MaxExtra bounds the bytes that a transport appends to a welcome.
	MaxExtra = 1024

	checkSize = 8 // bytes of a check
)

// SocketConfig configures a SocketServer.
type SocketConfig struct {
	// Dir is the directory of the socket. It is made private.
	Dir string
	// Suffix of the socket's name, with the dot, distinguishes the sockets of one
	// transport from others.
	Suffix string
	// Source redeems the tickets. It exports grants while Serve runs.
	Source *Source
	// Welcome returns what a receiver needs to reach the memory of a lease: bytes of the
	// transport's own, at most MaxExtra, and a descriptor or nil, which is closed after
	// it was sent.
	Welcome func(*Lease) (extra []byte, f *os.File, err error)
	Logger  *slog.Logger
	// DropIdle drops what has been unused since before. It is called regularly with the
	// time IdleTimeout ago, and with the present when Serve ends.
	DropIdle    func(before time.Time)
	IdleTimeout time.Duration
}

// SocketServer is the socket of a source.
type SocketServer struct {
	// Path is the socket's path, to which receivers connect.
	Path string

	config   SocketConfig
	listener *net.UnixListener
}

// ServeSocket listens and serves until ctx ends.
func ServeSocket(ctx context.Context, c SocketConfig) error {
	s, err := ListenSocket(c)
	if err == nil {
		s.Serve(ctx)
	}
	return err
}

// ListenSocket makes the socket. Serve must be called.
func ListenSocket(c SocketConfig) (*SocketServer, error) {
	if err := unixsocket.PrepareDir(c.Dir); err != nil {
		return nil, err
	}
	removeStaleSockets(c.Dir, c.Suffix)
	name := make([]byte, 6)
	rand.Read(name) // never fails
	path := filepath.Join(c.Dir, hex.EncodeToString(name)+c.Suffix)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	return &SocketServer{Path: path, config: c, listener: l}, nil
}

// ServeSocket serves receivers until ctx ends, and returns after the last session.
func (s *SocketServer) Serve(ctx context.Context) {
	s.config.Source.Start(s.Path)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		Serve(ctx, s.listener, s.config.Source.Transport, s.config.Logger, s.serveReceiver)
	})
	tick := time.NewTicker(s.config.IdleTimeout / 3)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.config.DropIdle(now.Add(-s.config.IdleTimeout))
		case <-ctx.Done():
			s.config.Source.Stop()
			s.config.DropIdle(time.Now())
			return
		}
	}
}

// serveReceiver serves one receiver until its connection or its lease ends.
func (s *SocketServer) serveReceiver(ctx context.Context, c net.Conn, admit func() error) error {
	conn := c.(*net.UnixConn)
	if err := unixsocket.CheckPeer(conn); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return err
	}
	packet := make([]byte, MaxHello+1)
	n, err := conn.Read(packet)
	if err != nil {
		return err
	}
	lease, err := s.config.Source.Accept(bytes.NewReader(packet[:n]), nil, admit, refuseOn(conn))
	if err != nil {
		return err
	}
	defer lease.End()
	defer lease.CloseWhenDone(conn)()

	if err := s.sendWelcome(conn, lease); err != nil {
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

// sendWelcome sends what a receiver needs to reach the memory of a lease.
func (s *SocketServer) sendWelcome(conn *net.UnixConn, lease *Lease) error {
	m := lease.Memory
	packet, err := AppendWelcome(nil, m.Layout, m.Size())
	if err != nil {
		return err
	}
	extra, f, err := s.config.Welcome(lease)
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
