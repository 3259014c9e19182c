package lease

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/internal/unixsocket"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/policies"
)

// SocketSession is the receiver's end of a pull. Its exported fields are what the source sent.
type SocketSession struct {
	Layout transport.Layout
	Size   int64    // of the pool, in bytes
	Extra  []byte   // the transport's own
	File   *os.File // nil for none; the caller closes it

	conn   *net.UnixConn
	checks uint64
}

// OpenSession presents the ticket of an offer at the socket of its source.
func (t *Local) OpenSession(ctx context.Context, receiver policies.ReplicaID, offer transport.Offer) (_ *SocketSession, err error) {
	// The address comes from a peer: it must not name another socket of this user.
	if !filepath.IsAbs(offer.Address) || !strings.HasSuffix(offer.Address, t.suffix) || len(offer.Address) > unixsocket.MaxPath {
		return nil, errors.New("the address is not the path of a source's socket")
	}
	if err := unixsocket.CheckDir(filepath.Dir(offer.Address)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: HelloTimeout}
	conn, err := dialer.DialContext(ctx, "unixpacket", offer.Address)
	if err != nil {
		return nil, err
	}
	s := &SocketSession{conn: conn.(*net.UnixConn)}
	defer func() {
		if err != nil {
			s.Close()
			if s.File != nil {
				s.File.Close()
			}
		}
	}()
	if err := unixsocket.CheckPeer(s.conn); err != nil {
		return nil, err
	}
	return s, s.exchange(ctx, HelloTimeout, func() error {
		return s.presentTicket(Hello{Ticket: offer.Ticket, Receiver: receiver})
	})
}

// Close ends the connection.
func (s *SocketSession) Close() { s.conn.Close() }

// presentTicket sends the hello and receives the welcome.
func (s *SocketSession) presentTicket(h Hello) error {
	hello, err := h.Append(nil)
	if err != nil {
		return err
	}
	if _, err := s.conn.Write(hello); err != nil {
		return err
	}
	packet, rights := make([]byte, MaxWelcome+MaxExtra+1), make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := s.conn.ReadMsgUnix(packet, rights)
	if err != nil {
		return err
	}
	files, err := unixsocket.ParseFiles(rights[:m], "pool")
	if len(files) == 1 {
		s.File = files[0]
	} else {
		for _, f := range files {
			f.Close()
		}
	}
	if err != nil {
		return err
	}
	r := bytes.NewReader(packet[:n])
	s.Layout, s.Size, err = ReadWelcome(r)
	if err == nil && (len(files) > 1 || flags&unix.MSG_CTRUNC != 0) {
		err = errors.New("the source sent more than one file")
	}
	if err == nil && r.Len() > MaxExtra {
		err = fmt.Errorf("the source sent %d bytes after its layout; at most %d are accepted", r.Len(), MaxExtra)
	}
	if err == nil {
		s.Extra = packet[n-r.Len() : n]
	}
	return err
}

// exchange runs f, which reads and writes the connection, until ctx ends or the timeout
// has passed.
func (s *SocketSession) exchange(ctx context.Context, timeout time.Duration, f func() error) error {
	if err := s.conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	return InterruptConn(ctx, s.conn, f)
}

// Check returns nil if the lease was in force at a moment after the call.
func (s *SocketSession) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.checks++
	err := s.exchange(ctx, checkTimeout, func() error {
		var packet [checkSize + 1]byte
		binary.LittleEndian.PutUint64(packet[:], s.checks)
		if _, err := s.conn.Write(packet[:checkSize]); err != nil {
			return err
		}
		n, err := s.conn.Read(packet[:])
		if err != nil {
			return err
		}
		if n != checkSize || binary.LittleEndian.Uint64(packet[:]) != s.checks {
			return errors.New("the answer has the number of another check")
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the source has ended the grant: %w", err)
	}
	return err
}
