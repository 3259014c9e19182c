package zmtp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serverHello is the greeting of a peer that speaks version 3.1.
var serverHello = serverSide.greeting()

var anywhere = netip.MustParseAddrPort("127.0.0.1:1")

// serveFor runs a server on an in-memory listener until the end of the test, and returns how to connect.
func serveFor(t *testing.T, f func(context.Context, net.Listener) error) (connect func() net.Conn, stop func()) {
	l := testkit.NewPipeListener(anywhere)
	stop = testkit.Run(t, func(ctx context.Context) error { return f(ctx, l) })
	return func() net.Conn { return testkit.Must(l.Dial(t.Context())) }, stop
}

// Subscribers get what they have subscribed to, in order, long frames and empty ones too.
func TestPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{HighWater: 10}
		connect, stop := serveFor(t, p.Serve)
		all, some, none := testkit.NewZMTP(t, connect(), "SUB"), testkit.NewZMTP(t, connect(), "XSUB"), testkit.NewZMTP(t, connect(), "SUB")
		all.Subscribe("")
		some.Subscribe("kv@b")
		some.Subscribe("other")
		none.Subscribe("kv@c")
		none.Command("CANCEL", "kv@c")
		none.Subscribe("end")
		topics := []string{"kv@a", "kv@b", "kv@bc", "kv@c", "end"}
		size := func(i int) string { return strings.Repeat("x", 254+i) } // the length of a frame has 1 or 8 bytes
		for i, topic := range topics {
			p.Publish([]byte(topic), []byte{byte(i)}, nil, []byte(size(i)))
		}
		for i, topic := range topics {
			want := []string{topic, string(rune(i)), "", size(i)}
			if got := all.Receive(); !slices.Equal(got, want) {
				t.Errorf("all: %q, want %q", got, want)
			}
			if i == 1 || i == 2 {
				if got := some.Receive(); !slices.Equal(got, want) {
					t.Errorf("some: %q, want %q", got, want)
				}
			}
		}
		if got := none.Receive(); got[0] != "end" {
			t.Errorf("none: %q", got)
		}
		// Before ZMTP 3.1, subscriptions are messages.
		none.Send("\x00end")
		none.Send("\x01old")
		none.Send("\x01abcd") // its bytes are not those of the topic before
		none.Subscribe("old") // twice: one of them remains
		none.Command("CANCEL", "old")
		none.Subscribe("unused")
		p.Publish([]byte("end"))
		p.Publish([]byte("old"))
		if got := none.Receive(); got[0] != "old" {
			t.Errorf("an old subscription: %q", got)
		}
		stop()
		for {
			if _, err := all.TryReceive(); err != nil {
				break
			}
		}
		p.Publish([]byte("no subscriber")) // does not block
	})
}

// A subscriber that reads too slowly loses messages, and only it does.
func TestHighWater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{HighWater: 5}
		connect, stop := serveFor(t, p.Serve)
		defer stop()
		slow, fast := testkit.NewZMTP(t, connect(), "SUB"), testkit.NewZMTP(t, connect(), "SUB")
		slow.Subscribe("")
		fast.Subscribe("")
		for i := range 20 {
			p.Publish(fmt.Append(nil, i))
			synctest.Wait()
			if got := fast.Receive(); got[0] != fmt.Sprint(i) {
				t.Fatalf("fast: %q, want %d", got, i)
			}
		}
		for i := range 6 { // one is being written
			if got := slow.Receive(); got[0] != fmt.Sprint(i) {
				t.Fatalf("slow: %q, want %d", got, i)
			}
		}
		p.Publish([]byte("next"))
		if got := slow.Receive(); got[0] != "next" {
			t.Errorf("slow: %q after the loss", got)
		}
	})
}

// A publisher connects to a subscriber that listens, and again when the connection is gone.
func TestConnect(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	address := l.Addr().String()
	p := &Publisher{HighWater: 5}
	stop := testkit.Run(t, func(ctx context.Context) error { return p.Connect(ctx, address) })
	defer stop()
	for i := range 3 {
		c := testkit.NewZMTP(t, testkit.Must(l.Accept()), "SUB")
		c.Subscribe("")
		p.Publish([]byte{byte(i)})
		if got := c.Receive(); got[0] != string(rune(i)) {
			t.Errorf("connection %d: %q", i, got)
		}
		switch i {
		case 0:
			c.Close()
		case 1: // the subscriber is away for a while
			l.Close()
			c.Close()
			l = testkit.Must(net.Listen("tcp", address))
			defer l.Close()
		case 2:
			p.Disconnect()
			if _, err := c.TryReceive(); err == nil {
				t.Error("Disconnect left the connection open")
			}
		}
	}
}

// A router answers the peer that asked, as often as it likes.
func TestRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connect, stop := serveFor(t, func(ctx context.Context, l net.Listener) error {
			return ServeRouter(ctx, l, func(frames [][]byte, reply Reply) {
				for range len(frames) {
					_ = reply(frames...)
				}
			})
		})
		defer stop()
		a, b := testkit.NewZMTP(t, connect(), "DEALER"), testkit.NewZMTP(t, connect(), "REQ")
		a.Command("UNKNOWN", "x") // ignored
		a.Send("", "one")
		b.Send("two")
		for range 2 {
			if got := a.Receive(); !slices.Equal(got, []string{"", "one"}) {
				t.Errorf("%q", got)
			}
		}
		if got := b.Receive(); !slices.Equal(got, []string{"two"}) {
			t.Errorf("%q", got)
		}
	})
}

// Peers that break the protocol lose their connections, and others do not notice.
func TestBadPeers(t *testing.T) {
	const ready = "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
	good := string(serverHello[:])
	for _, bytes := range []string{
		"GET / HTTP/1.1\r\n" + strings.Repeat("x", 64),
		strings.Replace(good, "\x7f\x03", "\x7f\x02", 1) + ready,
		strings.Replace(good, "NULL", "PLAIN", 1)[:64] + ready,
		good + "\x00\x01x",
		good + "\x04\x06\x05HELLO",
		good + "\x04\x06\x05READY",
		good + "\x04\x0a\x05READY\x0bSoc",
		good + "\x04\x19\x05READY\x0bSocket-Type\xff\xff\xff\xffSUB",
		good + strings.Replace(ready, "SUB", "REP", 1),
		good + "\x06\x00\x00\x00\x00\x7f\xff\xff\xff",
		good + ready + "\x02\x00\x00\x00\x00\x00\x00\x10\x01",
		good + ready + "\x80\x01x",
		good + ready + strings.Repeat("\x01\x01x", MaxFrames+1),
		good + ready + strings.Repeat("\x00\x02\x01x", maxTopics+1),
		"", // sends nothing until the handshake times out
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &Publisher{HighWater: 5}
			connect, stop := serveFor(t, p.Serve)
			defer stop()
			fine := testkit.NewZMTP(t, connect(), "SUB")
			fine.Subscribe("")
			bad := connect()
			defer bad.Close()
			go func() { _, _ = io.WriteString(bad, bytes) }()
			begin := time.Now()
			_, _ = io.Copy(io.Discard, bad) // returns when the connection is closed
			if waited := time.Since(begin); (waited > 0) != (bytes == "") {
				t.Errorf("%.80q is closed after %v", bytes, waited)
			}
			p.Publish([]byte("on"))
			if got := fine.Receive(); got[0] != "on" {
				t.Errorf("after %.80q: %q", bytes, got)
			}
		})
	}
}

// Connections beyond the limit are closed, and places become free again.
func TestPeerLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Publisher{HighWater: 1}
		connect, stop := serveFor(t, p.Serve)
		defer stop()
		first := testkit.NewZMTP(t, connect(), "SUB")
		for range maxPeers - 1 {
			testkit.NewZMTP(t, connect(), "SUB")
		}
		extra := connect()
		if n, err := io.Copy(io.Discard, extra); n > 0 {
			t.Errorf("a connection beyond the limit: %d bytes, %v", n, err)
		}
		first.Close()
		synctest.Wait()
		testkit.NewZMTP(t, connect(), "SUB")
	})
}

// FuzzServer reads what a peer sends after its greeting.
func FuzzServer(f *testing.F) {
	f.Add([]byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x01\x00\x00\x02\x01x\x04\x0bSUBSCRIBExy"))
	f.Add([]byte("\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB\x04\x08\x04PING\x00\x00x"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		here, there := net.Pipe()
		defer here.Close()
		go func() {
			defer there.Close()
			_, _ = there.Write(append(serverHello[:], sent...))
		}()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		c, err := open(here, serverSide, "PUB", "SUB")
		for err == nil {
			var frames [][]byte
			if frames, err = c.Receive(0); err == nil && (len(frames) == 0 || len(frames) > MaxFrames) {
				t.Fatalf("%d frames", len(frames))
			}
		}
	})
}
