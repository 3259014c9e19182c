// Package zmtp is the sending half of ZeroMQ's wire protocol (ZMTP 3.1, mechanism NULL), as an
// emulated engine needs it: Publisher is a PUB socket, ServeRouter a ROUTER socket.
//
// Peers are not authenticated, as with ZeroMQ's NULL mechanism: whoever can connect reads what is
// published. What peers send is bounded in size, and they have deadlines. A peer that breaks
// the protocol loses its connection only.
package zmtp

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Limits of a peer.
const (
	handshakeTimeout = 10 * time.Second
	// writeTimeout is how long a peer may take to read one message.
	writeTimeout = time.Minute
	maxFrame     = 4 << 10 // bytes of one frame that a peer sends
	maxFrames    = 8       // frames of one message that a peer sends
)

// Flags of a frame.
const (
	flagMore    = 1 << iota // another frame of the message follows
	flagLong                // the size has 8 bytes, not 1
	flagCommand             // for the protocol, not for the application
)

// conn is a connection after its handshake.
type conn struct {
	net.Conn
	r *bufio.Reader

	mu  sync.Mutex // guards writes and buf
	buf []byte
}

// greeting is what both sides send first: signature, version 3.1, mechanism, "not a server".
var greeting = func() (g [64]byte) {
	g[0], g[9], g[10], g[11] = 0xff, 0x7f, 3, 1
	copy(g[12:32], "NULL")
	return g
}()

// open does the handshake of a socket of a kind, such as PUB, whose peers have one of the other kinds. It
// closes the connection on errors.
func open(nc net.Conn, kind string, peers ...string) (*conn, error) {
	c := &conn{Conn: nc, r: bufio.NewReader(nc)}
	err := c.handshake(kind, peers)
	if err == nil {
		err = nc.SetDeadline(time.Time{})
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("ZMTP handshake with %s: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}

func (c *conn) handshake(kind string, peers []string) error {
	if err := c.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(greeting[:]); err != nil {
		return err
	}
	var theirs [len(greeting)]byte
	if _, err := io.ReadFull(c.r, theirs[:]); err != nil {
		return err
	}
	switch {
	case theirs[0] != 0xff || theirs[9]&1 == 0 || theirs[10] < 3:
		return errors.New("the peer does not speak ZMTP 3")
	case !bytes.Equal(theirs[12:32], greeting[12:32]):
		return fmt.Errorf("mechanism %q, want NULL", bytes.TrimRight(theirs[12:32], "\x00"))
	}
	ready := appendProperty(appendProperty([]byte("\x05READY"), "Socket-Type", kind), "Identity", "")
	if _, err := c.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return err
	}
	flags, body, err := c.readFrame()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return errors.New("the peer sent a message before its READY")
	}
	got, err := socketType(body)
	if err != nil {
		return err
	}
	for _, want := range peers {
		if got == want {
			return nil
		}
	}
	return fmt.Errorf("the peer's socket is a %s, which does not connect to a %s", got, kind)
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
		return "", fmt.Errorf("command %.20q, want READY", body)
	}
	for len(body) > 0 {
		n := int(body[0])
		if len(body) < 1+n+4 {
			break
		}
		name, rest := body[1:1+n], body[1+n:]
		size := binary.BigEndian.Uint32(rest)
		if uint64(len(rest)-4) < uint64(size) {
			break
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			return string(rest[4 : 4+size]), nil
		}
		body = rest[4+size:]
	}
	return "", errors.New("READY without a Socket-Type")
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

// send writes one message.
func (c *conn) send(frames ...[]byte) error {
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
func (c *conn) write() error {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	_, err := c.Write(c.buf)
	return err
}

// readFrame reads one frame.
func (c *conn) readFrame() (flags byte, body []byte, err error) {
	var head [9]byte
	if _, err := io.ReadFull(c.r, head[:2]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	if flags = head[0]; flags&flagLong != 0 {
		if _, err := io.ReadFull(c.r, head[2:9]); err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || size > maxFrame {
		return 0, nil, fmt.Errorf("a frame with flags %#x of %d bytes, the most is %d", flags, size, maxFrame)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.r, body)
	return flags, body, err
}

// read returns the next message, or the next command as one frame. It answers pings itself.
func (c *conn) read() (frames [][]byte, command bool, err error) {
	for {
		flags, body, err := c.readFrame()
		if err != nil {
			return nil, false, err
		}
		if flags&flagCommand != 0 {
			if ping, ok := bytes.CutPrefix(body, []byte("\x04PING")); ok && len(ping) >= 2 {
				if err := c.pong(ping[2:]); err != nil {
					return nil, false, err
				}
				continue
			}
			return [][]byte{body}, true, nil
		}
		if frames = append(frames, body); flags&flagMore == 0 {
			return frames, false, nil
		}
		if len(frames) == maxFrames {
			return nil, false, fmt.Errorf("a message of more than %d frames", maxFrames)
		}
	}
}

// pong answers a ping with its context.
func (c *conn) pong(context []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf = appendFrame(c.buf[:0], flagCommand, append([]byte("\x04PONG"), context...))
	return c.write()
}
