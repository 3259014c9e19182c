package handover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// MaxMessage is the largest message of a Link, in bytes.
const MaxMessage = 64 << 10

const (
	// sendTimeout bounds the sending of a message: the other process may be
	// suspended.
	sendTimeout = 100 * time.Millisecond
	// linkMessage is the first byte of each packet of a link. Packets of the handover
	// are JSON objects.
	linkMessage byte = 1
)

// Link connects the two processes after the handover, until either ends. It
// carries messages, whole and in order, and drops those that the other process does
// not receive in time.
//
// One goroutine may call Send while another one calls Receive; any may call Close.
type Link struct {
	conn    *net.UnixConn
	out, in []byte
}

func newLink(conn *net.UnixConn) *Link {
	// The deadlines of the handover do not apply to the link.
	conn.SetDeadline(time.Time{})
	return &Link{conn: conn}
}

// Send sends a message of at most MaxMessage bytes, or drops it and returns an
// error. It returns within sendTimeout.
func (l *Link) Send(b []byte) error {
	if len(b) > MaxMessage {
		return fmt.Errorf("message of %d bytes exceeds the limit of %d", len(b), MaxMessage)
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	l.out = append(append(l.out[:0], linkMessage), b...)
	_, err := l.conn.Write(l.out)
	return err
}

// Receive waits for the next message, which is valid until the next call. The error is io.EOF if
// the other process has ended, and a different one if the link is closed.
func (l *Link) Receive() ([]byte, error) {
	if l.in == nil {
		l.in = make([]byte, 1+MaxMessage+1)
	}
	for {
		switch n, err := l.conn.Read(l.in); {
		case err != nil && !errors.Is(err, net.ErrClosed):
			return nil, io.EOF // a reset, which reports unread messages, also means that it has ended
		case err != nil:
			return nil, err
		case n > 1+MaxMessage || n == 0 || l.in[0] != linkMessage:
			// A message of a later version, or the last packet of the handover.
		default:
			return l.in[1:n], nil
		}
	}
}

// Close ends the link for both processes. Further calls, and those on a nil Link,
// do nothing.
func (l *Link) Close() error {
	if l == nil {
		return nil
	}
	return l.conn.Close()
}
