package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/cascadeinfer/cascade/internal/httpserver"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackUnreadAnswers opens streams on one connection whose client takes no byte of the answers, at a
// real Envoy and at the proxy, both with the published listener, routes and clusters. What they hold of
// each answer is bounded, and so is the number of streams.
func TestAttackUnreadAnswers(t *testing.T) {
	f, addresses, _ := newPublicFleet(t)
	for name, address := range addresses {
		t.Run(name, func(t *testing.T) {
			const streams = 40
			before := f.settledFlood()
			framer := openUnread(t, address, streams)
			answers := 0
			for answers < streams {
				switch frame := testkit.Must(framer.ReadFrame()).(type) {
				case *http2.SettingsFrame:
					if n, ok := frame.Value(http2.SettingMaxConcurrentStreams); ok && (n < 100 || n > 1000) {
						t.Errorf("%d streams a connection, want 100 to 1,000", n)
					}
				case *http2.HeadersFrame:
					answers++
				}
			}
			if held := f.settledFlood() - before; held > streams*512<<10 {
				t.Errorf("%d KiB of each unread answer are held, want 512 at most", held/streams>>10)
			}
		})
	}
}

// TestAttackUnreadAnswersHTTP1 is TestAttackUnreadAnswers for connections of one request each. The kernel
// holds some megabytes of each.
func TestAttackUnreadAnswersHTTP1(t *testing.T) {
	f, addresses, _ := newPublicFleet(t)
	for name, address := range addresses {
		const clients, most = 5, 12 << 20
		before := f.settledFlood()
		for range clients {
			conn := testkit.Must(net.Dial("tcp", address))
			t.Cleanup(func() { conn.Close() })
			testkit.Must(io.WriteString(conn, "POST /v1/completions HTTP/1.1\r\nHost: m\r\nX-Flood: 1\r\nContent-Length: 0\r\n\r\n"))
			testkit.Must(conn.Read(make([]byte, 1)))
		}
		if held := (f.settledFlood() - before) / clients; held > most {
			t.Errorf("%s: %d KiB of each unread answer are held, want %d at most", name, held>>10, most>>10)
		}
	}
}

// settledFlood returns how much of answers to X-Flood the fronts could write, once no more is taken.
func (f *fleet) settledFlood() (sum int64) {
	for before := int64(-1); before != sum; time.Sleep(200 * time.Millisecond) {
		before, sum = sum, 0
		for _, r := range f.fronts {
			sum += r.flooded.Load()
		}
	}
	return sum
}

// openUnread opens streams on a connection that takes no byte of their answers. They ask for answers
// without an end.
func openUnread(t *testing.T, address string, streams uint32) *framer {
	t.Helper()
	framer := dialHTTP2(t, address, http2.Setting{ID: http2.SettingInitialWindowSize})
	for i := range streams {
		framer.request(2*i+1, true, "/v1/completions", "x-flood", "1")
	}
	return framer
}

// TestAnswersCountInBudget checks that answers whose clients do not read count as request bodies do: beyond
// the budget they are cut, and clients that read get theirs.
func TestAnswersCountInBudget(t *testing.T) {
	f := newFleet(t, 2, nil)
	f.proxy.buffers.budget = httpserver.NewBudget(3 * answerMemory)
	framer := openUnread(t, strings.TrimPrefix(f.url, "http://"), 10)
	for cut := 0; cut < 7; {
		if _, ok := testkit.Must(framer.ReadFrame()).(*http2.RSTStreamFrame); ok {
			cut++
		}
	}
	if held := f.proxy.buffers.budget.Held(); held != 3*answerMemory {
		t.Errorf("%d bytes are held, want %d", held, 3*answerMemory)
	}
	if resp, body := f.send("GET", "/sse?n=20&gap=1ms", "", nil); resp.StatusCode != 200 || !bytes.Contains(body,
		[]byte("[DONE]")) {
		t.Errorf("a client that reads gets %s %s", resp.Status, body)
	}
}

// TestLargeBodiesAreRepeated checks that the small buffers of connections do not bound request bodies: a
// large one that a replica refuses is sent to another one, whole, with and without a length.
func TestLargeBodiesAreRepeated(t *testing.T) {
	f, addresses, _ := newPublicFleet(t)
	large := bytes.Repeat([]byte("x"), 5<<20)
	for name, address := range addresses {
		for _, body := range []io.Reader{bytes.NewReader(large), chunked{bytes.NewReader(large)}} {
			r := testkit.Must(http.NewRequest("POST", "http://"+address+"/v1/completions", body))
			r.Header.Set("X-Refuse-By", "r1")
			resp := testkit.Must(f.client.Do(r))
			var s seen
			err := json.NewDecoder(resp.Body).Decode(&s)
			resp.Body.Close()
			if err != nil || s.By != "r0" || s.Bytes != len(large) {
				t.Errorf("%s: %s, %d bytes by %q, %v", name, resp.Status, s.Bytes, s.By, err)
			}
		}
	}
}
