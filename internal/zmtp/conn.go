// Package zmtp speaks ZeroMQ's wire protocol (ZMTP 3, mechanism NULL): a Conn is one connection of
// a SUB socket, which subscribes and reads, or of a DEALER socket, which asks and reads; Publisher is a PUB
// socket, ServeRouter a ROUTER socket.
//
// A Conn has no queue and no goroutine: a slow reader makes the peer wait, and then drop messages.
// Sizes are bounded and, once a message has begun, so is the time until it ends. A peer that breaks
// the protocol loses its connection only. Peers are not authenticated, as with ZeroMQ's NULL
// mechanism: whoever can connect reads what is published.
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Limits of a peer.
const (
	// MaxMessage is the largest number of bytes in the frames of a message.
	MaxMessage = 32 << 20
	// MaxFrames is the largest number of frames in a message.
	MaxFrames = 8

	maxCommand       = 4 << 10
	handshakeTimeout = 10 * time.Second
	messageTimeout   = 30 * time.Second // from a message's first byte to its last
	keptBuffer       = 1 << 20          // a larger buffer is not kept for the next message
)

// side is what one side of a connection does differently.
type side struct {
	minor        byte          // of the version: since 3.1, subscriptions are commands
	maxMessage   uint64        // bytes in the frames of a message from the peer
	writeTimeout time.Duration // for the peer to read a message
}

var (
	clientSide = side{0, MaxMessage, 10 * time.Second}
	serverSide = side{1, 4 << 10, time.Minute}
)

// Flags of a frame.
const (
	flagMore    = 1 << iota // another frame of the message follows
	flagLong                // the size has 8 bytes, not 1
	flagCommand             // for the protocol, not for the application
)

// The greeting is a signature, the version, the mechanism, and "not a server". A SUB socket names
// version 3.0, in which a subscription is a message, so peers need not know the commands of 3.1.
const (
	greetingSize = 64
	mechanismAt  = 12
	mechanismEnd = 32
)

func (s side) greeting() (g [greetingSize]byte) {
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, s.minor
	copy(g[mechanismAt:], "NULL")
	return g
}

// Conn is a connection after its handshake. One goroutine may receive while others send.
// Close may be called at any time.
type Conn struct {
	net     net.Conn
	side    side
	command func(body []byte) error // handles commands but pings and errors; nil ignores them
	r       *bufio.Reader
	body    []byte // of the frames of one message
	ends    []int
	out     [][]byte

	mu  sync.Mutex // guards writes and buf
	buf []byte
}

// Open does the handshake of a socket of that kind, SUB or DEALER, whose peer must be of one of
// the other kinds. It closes the connection when it fails.
func Open(c net.Conn, kind string, peers ...string) (*Conn, error) {
	return open(c, clientSide, kind, peers...)
}

func open(c net.Conn, side side, kind string, peers ...string) (*Conn, error) {
	z := &Conn{net: c, side: side, r: bufio.NewReaderSize(c, int(min(side.maxMessage, 64<<10)))}
	if err := z.handshake(kind, peers); err != nil {
		c.Close()
		return nil, fmt.Errorf("ZMTP handshake with %s: %w", c.RemoteAddr(), err)
	}
	return z, nil
}

func (c *Conn) handshake(kind string, peers []string) error {
	if err := c.net.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	ours := c.side.greeting()
	if _, err := c.net.Write(ours[:]); err != nil {
		return err
	}
	var theirs [greetingSize]byte
	if _, err := io.ReadFull(c.r, theirs[:]); err != nil {
		return err
	}
	mechanism := theirs[mechanismAt:mechanismEnd]
	switch {
	case theirs[0] != 0xff || theirs[9]&1 == 0 || theirs[10] < 3:
		return errors.New("the peer does not speak ZMTP 3")
	case !bytes.Equal(mechanism, ours[mechanismAt:mechanismEnd]):
		return fmt.Errorf("the peer wants mechanism %.20q, only NULL is known: turn authentication off", bytes.TrimRight(mechanism, "\x00"))
	}
	ready := appendProperty([]byte("\x05READY"), "Socket-Type", kind)
	if kind != "SUB" {
		ready = appendProperty(ready, "Identity", "")
	}
	if _, err := c.net.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return err
	}
	flags, size, err := c.readHeader()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return errors.New("the peer's first frame is no READY command")
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	got, err := socketType(body)
	if err != nil {
		return err
	}
	if !slices.Contains(peers, got) {
		return fmt.Errorf("the peer is a %.20s socket, want one of %v", got, peers)
	}
	return c.net.SetDeadline(time.Time{})
}

// appendProperty appends a name and a value of a READY command.
func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// socketType returns the socket type of a READY command.
func socketType(body []byte) (string, error) {
	body, ok := bytes.CutPrefix(body, []byte("\x05READY"))
	if !ok {
		return "", fmt.Errorf("the peer sent command %.20q, want READY", body)
	}
	for len(body) > 0 {
		n := int(body[0])
		if len(body) < 1+n+4 {
			break
		}
		name, rest := body[1:1+n], body[1+n:]
		size, rest := uint64(binary.BigEndian.Uint32(rest)), rest[4:]
		if uint64(len(rest)) < size {
			break
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			return string(rest[:size]), nil
		}
		body = rest[size:]
	}
	return "", errors.New("the peer's READY names no socket type")
}

// appendFrame appends a frame, with the size in as few bytes as possible.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		b = append(b, flags, byte(len(body)))
	} else {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	}
	return append(b, body...)
}

// Close closes the connection, and ends a Receive.
func (c *Conn) Close() error { return c.net.Close() }

// Subscribe asks a publisher for the messages whose first frame begins with topic.
func (c *Conn) Subscribe(topic string) error { return c.Send([]byte("\x01" + topic)) }

// Send sends a message.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = c.buf[:0]
	for i, f := range frames {
		var flags byte
		if i < len(frames)-1 {
			flags = flagMore
		}
		c.buf = appendFrame(c.buf, flags, f)
	}
	return c.write()
}

// write writes buf. The caller holds mu.
func (c *Conn) write() error {
	if err := c.net.SetWriteDeadline(time.Now().Add(c.side.writeTimeout)); err != nil {
		return err
	}
	_, err := c.net.Write(c.buf)
	return err
}

// sendPong answers a ping with its context.
func (c *Conn) sendPong(context []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = appendFrame(c.buf[:0], flagCommand, append([]byte("\x04PONG"), context...))
	return c.write()
}

// Receive returns the frames of the next message, which are valid until the next call. It waits
// for a message to begin for as long as idle says, 0 for any time, and then fails with
// os.ErrDeadlineExceeded; the connection can still be used. After any other error it cannot.
func (c *Conn) Receive(idle time.Duration) ([][]byte, error) {
	if cap(c.body) > keptBuffer {
		c.body = nil
	}
	c.body, c.ends, c.out = c.body[:0], c.ends[:0], c.out[:0]
	var until time.Time
	if idle > 0 {
		until = time.Now().Add(idle)
	}
	for more := true; more; {
		if len(c.ends) == 0 {
			if err := c.net.SetReadDeadline(until); err != nil {
				return nil, err
			}
			if _, err := c.r.Peek(1); err != nil {
				return nil, err
			}
			if err := c.net.SetReadDeadline(time.Now().Add(messageTimeout)); err != nil {
				return nil, err
			}
		}
		var err error
		if more, err = c.readFrame(); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return nil, fmt.Errorf("a message took more than %v", messageTimeout) // not idle
			}
			return nil, err
		}
	}
	from := 0
	for _, end := range c.ends {
		c.out, from = append(c.out, c.body[from:end:end]), end
	}
	return c.out, nil
}

// readFrame reads a frame of a message, or a command. It returns whether there is more to read.
func (c *Conn) readFrame() (more bool, err error) {
	flags, size, err := c.readHeader()
	switch {
	case err != nil:
		return false, err
	case flags&flagCommand != 0:
		return true, c.handleCommand(size)
	case size > c.side.maxMessage-uint64(len(c.body)):
		return false, fmt.Errorf("frame %d of a message announces %d bytes: a message may have %d", len(c.ends), size, c.side.maxMessage)
	case len(c.ends) == MaxFrames:
		return false, fmt.Errorf("a message of more than %d frames", MaxFrames)
	}
	err = c.readBody(int(size))
	c.ends = append(c.ends, len(c.body))
	return flags&flagMore != 0, err
}

// readBody appends the bytes of a frame to the message, in pieces: memory is not allocated
// before the bytes are there.
func (c *Conn) readBody(size int) error {
	for size > 0 {
		from, n := len(c.body), min(size, 64<<10)
		c.body = slices.Grow(c.body, n)[:from+n]
		if _, err := io.ReadFull(c.r, c.body[from:]); err != nil {
			return err
		}
		size -= n
	}
	return nil
}

// readHeader reads the flags and the size of a frame.
func (c *Conn) readHeader() (flags byte, size uint64, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.r, head[:2]); err != nil {
		return 0, 0, err
	}
	flags, size = head[0], uint64(head[1])
	if flags&flagLong != 0 {
		if _, err := io.ReadFull(c.r, head[2:]); err != nil {
			return 0, 0, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagCommand != 0 && flags&flagMore != 0 {
		return 0, 0, fmt.Errorf("a frame with flags %#x", flags)
	}
	return flags, size, nil
}

// handleCommand reads a command, and answers it if it is a ping.
func (c *Conn) handleCommand(size uint64) error {
	if size > maxCommand {
		return fmt.Errorf("a command of %d bytes, the most is %d", size, maxCommand)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return err
	}
	switch ping, ok := bytes.CutPrefix(body, []byte("\x04PING")); {
	case ok && len(ping) >= 2: // a time to live of 2 bytes, and a context
		return c.sendPong(ping[2:])
	case bytes.HasPrefix(body, []byte("\x05ERROR")):
		return fmt.Errorf("the peer reports an error: %.200q", body[6:])
	case c.command != nil:
		return c.command(body)
	}
	return nil
}
