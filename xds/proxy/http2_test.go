package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// framer is a client's end of an HTTP/2 connection, frame by frame.
type framer struct {
	*http2.Framer
	t      *testing.T
	header bytes.Buffer
	coder  *hpack.Encoder
}

// dialHTTP2 connects to a server until the end of the test.
func dialHTTP2(t *testing.T, address string, settings ...http2.Setting) *framer {
	t.Helper()
	conn := testkit.Must(net.Dial("tcp", address))
	t.Cleanup(func() { conn.Close() })
	testkit.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	testkit.Must(io.WriteString(conn, http2.ClientPreface))
	f := &framer{Framer: http2.NewFramer(conn, conn), t: t}
	f.coder = hpack.NewEncoder(&f.header)
	testkit.NoError(t, f.WriteSettings(settings...))
	return f
}

// request sends the head of a POST request, with more pairs of a header's name and value.
func (f *framer) request(id uint32, end bool, path string, more ...string) {
	f.t.Helper()
	f.header.Reset()
	fields := append([]string{":method", "POST", ":scheme", "http", ":authority", "m", ":path", path}, more...)
	for i := 0; i < len(fields); i += 2 {
		testkit.NoError(f.t, f.coder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	testkit.NoError(f.t, f.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: f.header.Bytes(), EndStream: end, EndHeaders: true,
	}))
}

// serveFrames starts an HTTP/2 server that passes each frame to handle, and closes the connection where that returns
// false.
func serveFrames(t *testing.T, handle func(f *http2.Framer, frame http2.Frame) bool) (address string) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(t.Context(), func() { c.Close() })
			wg.Go(func() {
				defer stop()
				defer c.Close()
				if _, err := io.ReadFull(c, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				f := http2.NewFramer(c, c)
				f.WriteSettings()
				f.WriteSettingsAck()
				for {
					if frame, err := f.ReadFrame(); err != nil || !handle(f, frame) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

// answerHeads starts a server that answers the head of every stream.
func answerHeads(t *testing.T, answer func(f *http2.Framer, id uint32)) (address string) {
	return serveFrames(t, func(f *http2.Framer, frame http2.Frame) bool {
		if h, ok := frame.(*http2.HeadersFrame); ok {
			answer(f, h.StreamID)
		}
		return true
	})
}

// answerBodies starts a server that answers at the end of every stream's body, and closes the connection where answer
// returns false.
func answerBodies(t *testing.T, answer func(f *http2.Framer, id uint32) bool) (address string) {
	return serveFrames(t, func(f *http2.Framer, frame http2.Frame) bool {
		d, ok := frame.(*http2.DataFrame)
		return !ok || !d.StreamEnded() || answer(f, d.StreamID)
	})
}
