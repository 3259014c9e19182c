package handover

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// MaxMessage is how many bytes one word of a Link may have.
const MaxMessage = 64 << 10

const (
	// sendTimeout bounds the sending of a word: the other process may stand still.
	sendTimeout = 100 * time.Millisecond
	// linkMessage begins each packet of a link. Those of the hand-over, which are JSON
	// objects, do not.
	linkMessage byte = 1
)

// Link is what is left of the conversation once a process has left: the two
// processes tell each other what concerns the replica that they are, until
// either ends. It carries words, whole and in order, and promises no more: those
// that the other one does not take in time are dropped.
//
// One goroutine may Send while another one Receives; Close may be called by any.
type Link struct {
	conn    *net.UnixConn
	out, in []byte
}

func newLink(conn *net.UnixConn) *Link {
	// What bounded the steps of the hand-over does not bound what follows.
	conn.SetDeadline(time.Time{})
	return &Link{conn: conn}
}

// Send sends a word of at most MaxWord bytes, or drops it, which is an error
// too. It returns within a moment.
func (l *Link) Send(b []byte) error {
	if len(b) > MaxMessage {
		return fmt.Errorf("a word of %d bytes; a link carries %d", len(b), MaxMessage)
	}
	if err := l.conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return err
	}
	l.out = append(append(l.out[:0], linkMessage), b...)
	_, err := l.conn.Write(l.out)
	return err
}

// Receive waits for the next word, which holds until the next call. Its error
// says that the other process has ended, or that the link is closed; io.EOF says
// the former.
func (l *Link) Receive() ([]byte, error) {
	if l.in == nil {
		l.in = make([]byte, 1+MaxMessage+1)
	}
	for {
		switch n, err := l.conn.Read(l.in); {
		case err != nil && !errors.Is(err, net.ErrClosed):
			return nil, io.EOF // a reset, for words that it left unread, is its end too
		case err != nil:
			return nil, err
		case n > 1+MaxMessage || n == 0 || l.in[0] != linkMessage:
			// A later version's, or the hand-over's last packet, which came late.
		default:
			return l.in[1:n], nil
		}
	}
}

// Close ends the link for both. Further calls, and those of a nil Link, do
// nothing.
func (l *Link) Close() error {
	if l == nil {
		return nil
	}
	return l.conn.Close()
}
