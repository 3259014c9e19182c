package localsocket

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

	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/wire"
	"github.com/cascadeinfer/cascade/policies"
)

// Session is a receiver's end of a move.
type Session struct {
	// What the source has sent. File is the receiver's to close, nil for none.
	Layout transport.Layout
	Size   int64 // of the pool
	Extra  []byte
	File   *os.File

	conn   *net.UnixConn
	checks uint64
}

// Open presents an offer's ticket at the socket of a source with this suffix.
func Open(ctx context.Context, suffix string, receiver policies.ReplicaID, offer transport.Offer) (_ *Session, err error) {
	// The address comes from a peer: it must be no other socket of this user.
	if !filepath.IsAbs(offer.Address) || !strings.HasSuffix(offer.Address, suffix) || len(offer.Address) > MaxPath {
		return nil, errors.New("not the path of a source's socket")
	}
	if err := isPrivate(filepath.Dir(offer.Address)); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: helloTimeout}
	conn, err := dialer.DialContext(ctx, "unixpacket", offer.Address)
	if err != nil {
		return nil, err
	}
	s := &Session{conn: conn.(*net.UnixConn)}
	defer func() {
		if err != nil {
			s.Close()
			if s.File != nil {
				s.File.Close()
			}
		}
	}()
	if err := sameUser(s.conn); err != nil {
		return nil, err
	}
	return s, s.during(ctx, helloTimeout, func() error { return s.greet(wire.Hello{Ticket: offer.Ticket, Receiver: receiver}) })
}

// Close ends the connection.
func (s *Session) Close() { s.conn.Close() }

// greet presents the ticket and takes what the source sends.
func (s *Session) greet(h wire.Hello) error {
	hello, err := h.Append(nil)
	if err != nil {
		return err
	}
	if _, err := s.conn.Write(hello); err != nil {
		return err
	}
	packet, rights := make([]byte, wire.MaxWelcome+MaxExtra+1), make([]byte, unix.CmsgSpace(4))
	n, m, flags, _, err := s.conn.ReadMsgUnix(packet, rights)
	if err != nil {
		return err
	}
	files, err := received(rights[:m])
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
	s.Layout, s.Size, err = wire.ReadWelcome(r)
	if err == nil && (len(files) > 1 || flags&unix.MSG_CTRUNC != 0) {
		err = errors.New("the source sent more than one file")
	}
	if err == nil && r.Len() > MaxExtra {
		err = fmt.Errorf("the source sent %d bytes behind its layout", r.Len())
	}
	if err == nil {
		s.Extra = packet[n-r.Len() : n]
	}
	return err
}

// received takes the descriptors out of a control message.
func received(rights []byte) ([]*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "pool"))
		}
	}
	return files, nil
}

// during runs f, which talks to the source, and ends it with ctx or after d.
func (s *Session) during(ctx context.Context, d time.Duration, f func() error) error {
	if err := s.conn.SetDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(time.Unix(1, 0)) })
	err := f()
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Check returns nil when the lease was in force at a moment after the call.
func (s *Session) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.checks++
	err := s.during(ctx, checkTimeout, func() error {
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
			return errors.New("it answers another check")
		}
		return nil
	})
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("the source has ended the grant: %w", err)
	}
	return err
}
