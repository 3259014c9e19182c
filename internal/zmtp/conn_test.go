package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// script is a connection whose peer has sent some bytes and then sends no more. What it is sent
// is recorded.
type script struct {
	net.Conn
	in     *bytes.Reader
	sent   bytes.Buffer
	closed bool
}

func (s *script) Read(b []byte) (int, error) { return s.in.Read(b) }

func (s *script) Write(b []byte) (int, error) {
	if s.closed {
		return 0, net.ErrClosed
	}
	return s.sent.Write(b)
}

func (s *script) Close() error {
	s.closed = true
	return nil
}

func (*script) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (*script) SetDeadline(time.Time) error      { return nil }
func (*script) SetReadDeadline(time.Time) error  { return nil }
func (*script) SetWriteDeadline(time.Time) error { return nil }

// hello is what a peer of that kind sends first.
func hello(kind string) []byte {
	g := serverSide.greeting()
	return appendFrame(g[:], flagCommand, appendProperty(appendProperty([]byte("\x05READY"), "Identity", "x"), "socket-type", kind))
}

// TestHandshake checks which peers are accepted.
func TestHandshake(t *testing.T) {
	edit := func(edit func(b []byte)) []byte {
		b := hello("PUB")
		edit(b)
		return b
	}
	for want, text := range map[string][]byte{
		"":                        hello("PUB"),
		"does not speak":          edit(func(b []byte) { b[0] = 'G' }),
		"does not speak ZMTP":     edit(func(b []byte) { b[10] = 2 }),
		"turn authentication off": edit(func(b []byte) { copy(b[12:], "CURVE") }),
		"no READY":                edit(func(b []byte) { b[greetingSize] = 0 }),
		"want READY":              edit(func(b []byte) { copy(b[greetingSize+2:], "\x05ERROR") }),
		"want one of [PUB XPUB]":  hello("ROUTER"),
		"flags 0x80":              edit(func(b []byte) { b[greetingSize] = 0x80 }),
		"names no socket type":    appendFrame(edit(func([]byte) {})[:greetingSize], flagCommand, []byte("\x05READY\x03abc\x00\x00\x00\xff")),
		"no READY command":        appendFrame(edit(func([]byte) {})[:greetingSize], flagCommand, make([]byte, maxCommand+1)),
		"EOF":                     hello("PUB")[:40],
	} {
		c := &script{in: bytes.NewReader(text)}
		z, err := Open(c, "SUB", "PUB", "XPUB")
		if want == "" {
			if err != nil {
				t.Error(err)
				continue
			}
			z.Close()
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error that contains %q", err, want)
		}
		if !c.closed {
			t.Errorf("%s: the connection is open", want)
		}
		if sent := c.sent.Bytes(); want == "" && sent[11] != 0 {
			t.Errorf("a SUB socket speaks version 3.%d", sent[11])
		}
		if sent := c.sent.Bytes(); want == "" && !bytes.Contains(sent, []byte("\x0bSocket-Type\x00\x00\x00\x03SUB")) {
			t.Errorf("sent %q", sent)
		}
	}
}

// openScript returns a Conn whose peer sends these bytes after the handshake.
func openScript(t *testing.T, text []byte) (*Conn, *script) {
	c := &script{in: bytes.NewReader(append(hello("PUB"), text...))}
	z, err := Open(c, "SUB", "PUB")
	testkit.NoError(t, err)
	return z, c
}

// message is the bytes of a message.
func message(frames ...string) (b []byte) {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, []byte(f))
	}
	return b
}

// TestReceive checks messages of all sizes, with commands between and within them.
func TestReceive(t *testing.T) {
	long := strings.Repeat("x", 300_000)
	text := message("a", "", "bc")
	text = append(text, appendFrame(nil, flagCommand, []byte("\x04PING\x00\x10context"))...)
	text = append(text, message(long)...)
	text = append(text, message("a", long, long)[:2+1]...)
	text = append(text, appendFrame(nil, flagCommand, []byte("\x09SUBSCRIBEx"))...)
	text = append(text, message("b")...)
	z, p := openScript(t, text)
	for _, want := range [][]string{{"a", "", "bc"}, {long}, {"a", "b"}} {
		got, err := z.Receive(time.Minute)
		testkit.NoError(t, err)
		if !slices.EqualFunc(got, want, func(a []byte, b string) bool { return string(a) == b }) {
			t.Errorf("%d frames, want %d", len(got), len(want))
		}
	}
	if _, err := z.Receive(time.Minute); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
	z.Close()
	if sent := p.sent.Bytes(); !bytes.HasSuffix(sent, []byte("\x04\x0c\x04PONGcontext")) {
		t.Errorf("sent %q", sent)
	}
}

// TestLimits checks that a peer that exceeds a limit or breaks the protocol loses its
// connection, and that no memory is allocated for what it only announces.
func TestLimits(t *testing.T) {
	size := func(flags byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, n) }
	many := make([]string, MaxFrames+1)
	for want, text := range map[string][]byte{
		"frame 0":         size(0, MaxMessage+1),
		"may have 335":    size(0, 1<<64-1),
		"announces 92233": size(0, 1<<63),
		"frame 1 of a me": append(message("a", "")[:3], size(0, MaxMessage)...),
		"frames":          message(many...),
		"flags 0x8":       {8, 0},
		"flags 0x5":       {flagCommand | flagMore, 0},
		"the most is 409": size(flagCommand, maxCommand+1),
		"reports":         appendFrame(nil, flagCommand, []byte("\x05ERROR\x03why")),
		"EOF":             size(0, MaxMessage), // announced, and then nothing
	} {
		z, _ := openScript(t, text)
		if frames, err := z.Receive(time.Minute); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d frames, %v, want an error that contains %q", len(frames), err, want)
		}
		if cap(z.body) > 1<<20 {
			t.Errorf("%s: %d bytes of memory", want, cap(z.body))
		}
		z.Close()
	}
}

// TestDeadlines checks that a peer may be silent between messages and not within one.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, p := net.Pipe()
		go func() {
			p.Write(hello("PUB"))
		}()
		go io.Copy(io.Discard, p)
		z, err := Open(here, "SUB", "PUB")
		testkit.NoError(t, err)
		for range 3 {
			begin := time.Now()
			if _, err := z.Receive(time.Hour); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != time.Hour {
				t.Errorf("%v after %v", err, time.Since(begin))
			}
		}
		go p.Write(message("late"))
		if got, err := z.Receive(time.Second); err != nil || string(got[0]) != "late" {
			t.Errorf("%q, %v", got, err)
		}
		begin := time.Now()
		go p.Write(message("half of it")[:5])
		if _, err := z.Receive(time.Hour); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != messageTimeout {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		z.Close()
		p.Close()

		// Nor in the handshake, nor may it leave unread what is sent.
		here, p = net.Pipe()
		begin = time.Now()
		if _, err := Open(here, "SUB", "PUB"); err == nil || time.Since(begin) != handshakeTimeout {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		p.Close()
	})
}

// TestLargeMessage checks that the memory of a large message is not kept.
func TestLargeMessage(t *testing.T) {
	large := strings.Repeat("x", keptBuffer+1)
	z, p := openScript(t, append(message(large), message("a")...))
	if got, err := z.Receive(time.Minute); err != nil || len(got[0]) != len(large) {
		t.Error(err)
	}
	if _, err := z.Receive(time.Minute); err != nil || cap(z.body) > keptBuffer {
		t.Errorf("%v, %d bytes are kept", err, cap(z.body))
	}
	z.Close()
	if !p.closed {
		t.Error("Close does not close the connection")
	}
}

// TestSend checks the bytes of what is sent, by those that ZeroMQ's own sockets send.
func TestSend(t *testing.T) {
	z, p := openScript(t, nil)
	if err := z.Subscribe("kv@r1"); err != nil {
		t.Error(err)
	}
	if err := z.Send(nil, []byte("\x00\x00\x00\x00\x00\x00\x00\x07")); err != nil {
		t.Error(err)
	}
	z.Close()
	want := "\x00\x06\x01kv@r1" + "\x01\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\x07"
	if sent := p.sent.Bytes(); !bytes.HasSuffix(sent, []byte(want)) {
		t.Errorf("sent %q, want %q at the end", sent, want)
	}
}

// FuzzReceive reads whatever a peer sends after the handshake: it must end, and within limits.
func FuzzReceive(f *testing.F) {
	f.Add(message("kv", "\x00\x00\x00\x00\x00\x00\x00\x00", "\x93\xcb"))
	f.Add(append(appendFrame(nil, flagCommand, []byte("\x04PING\x00\x10c")), message("", "", "\xff\xff\xff\xff\xff\xff\xff\xff", "")...))
	f.Add([]byte{flagLong, 0, 0, 0, 0, 0, 1, 0, 0})
	f.Fuzz(func(t *testing.T, text []byte) {
		z, _ := openScript(t, text)
		total := 0
		for {
			frames, err := z.Receive(time.Minute)
			if err != nil {
				break
			}
			if len(frames) == 0 || len(frames) > MaxFrames {
				t.Errorf("%d frames", len(frames))
			}
			for _, f := range frames {
				total += len(f)
			}
		}
		if total > len(text) {
			t.Errorf("%d bytes of %d", total, len(text))
		}
		z.Close()
	})
}
