package testkit

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
)

// ZMTPClient is a SUB or DEALER socket of ZeroMQ's wire protocol on one connection, after its handshake. It is as
// plain as possible, and shares no code with internal/zmtp. Its methods end the test when the peer goes.
type ZMTPClient struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

// NewZMTP does the handshake of a socket of a kind, SUB or DEALER, on a connection, which ends with the test.
func NewZMTP(t testing.TB, conn net.Conn, kind string) *ZMTPClient {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	c := &ZMTPClient{t, conn, bufio.NewReader(conn)}
	peer := make(chan []byte)
	go func() { // at the same time: an in-memory connection has no buffer
		greeting := make([]byte, 64)
		_, _ = io.ReadFull(c.r, greeting)
		peer <- greeting
	}()
	c.write(slices.Concat([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01NULL"), make([]byte, 48)))
	if g := <-peer; g[0] != 0xff || g[9] != 0x7f || g[10] != 3 || string(g[12:17]) != "NULL\x00" {
		t.Fatalf("greeting %x", g)
	}
	command := make(chan []byte)
	go func() {
		_, body, err := c.frame()
		if err != nil {
			body = []byte(err.Error())
		}
		command <- body
	}()
	c.write(fmt.Appendf(nil, "\x04%c\x05READY\x0bSocket-Type\x00\x00\x00%c%s", 6+12+4+len(kind), len(kind), kind))
	if body := <-command; len(body) < 6 || string(body[:6]) != "\x05READY" {
		t.Fatalf("%q, want READY", body)
	}
	return c
}

// DialZMTP returns a client of an address.
func DialZMTP(t testing.TB, address, kind string) *ZMTPClient {
	t.Helper()
	return NewZMTP(t, Must(net.Dial("tcp", address)), kind)
}

// Close closes the connection.
func (c *ZMTPClient) Close() { c.conn.Close() }

// Subscribe subscribes to a topic, by a command, and returns when the subscription applies.
func (c *ZMTPClient) Subscribe(topic string) {
	c.t.Helper()
	c.Command("SUBSCRIBE", topic)
	c.Command("PING", "\x00\x00now?") // answered after what came before
	if flags, body, err := c.frame(); err != nil || flags != 4 || string(body) != "\x04PONGnow?" {
		c.t.Fatalf("%d %q %v, want PONG", flags, body, err)
	}
}

// Command sends a short command.
func (c *ZMTPClient) Command(name, data string) {
	c.t.Helper()
	c.write(fmt.Appendf(nil, "\x04%c%c%s%s", 1+len(name)+len(data), len(name), name, data))
}

// Send sends a message of short frames.
func (c *ZMTPClient) Send(frames ...string) {
	c.t.Helper()
	var b []byte
	for i, f := range frames {
		more := byte(1)
		if i == len(frames)-1 {
			more = 0
		}
		b = append(append(b, more, byte(len(f))), f...)
	}
	c.write(b)
}

// Receive returns the next message.
func (c *ZMTPClient) Receive() []string {
	c.t.Helper()
	m, err := c.TryReceive()
	NoError(c.t, err)
	return m
}

// TryReceive returns the next message, or why there is none.
func (c *ZMTPClient) TryReceive() (m []string, err error) {
	for {
		flags, body, err := c.frame()
		if err != nil {
			return nil, err
		}
		if m = append(m, string(body)); flags&1 == 0 {
			return m, nil
		}
	}
}

func (c *ZMTPClient) frame() (flags byte, body []byte, err error) {
	if flags, err = c.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	size := make([]byte, 8)
	from := 7
	if flags&2 != 0 {
		from = 0
	}
	if _, err := io.ReadFull(c.r, size[from:]); err != nil {
		return 0, nil, err
	}
	body = make([]byte, binary.BigEndian.Uint64(size))
	_, err = io.ReadFull(c.r, body)
	return flags, body, err
}

func (c *ZMTPClient) write(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatal(err)
	}
}
