package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/policies/length"
)

// TestAttackHalfClose checks that a client which closes its side of the connection before
// or within an answer gets no answer that looks complete.
func TestAttackHalfClose(t *testing.T) {
	f := newFleet(t, 2, nil)
	for _, path := range []string{"/hang", "/sse?n=2&gap=1h"} {
		before := f.fronts[0].hits.Load()
		conn := testkit.Must(net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))).(*net.TCPConn)
		defer conn.Close()
		testkit.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n%s", path, prompt("m", 100))
		testkit.WaitFor(t, "the request", func() bool { return f.fronts[0].hits.Load() > before })
		var got []byte
		if strings.HasPrefix(path, "/sse") {
			got = make([]byte, 1) // the answer has begun
			testkit.Must(io.ReadFull(conn, got))
		}
		testkit.NoError(t, conn.CloseWrite())
		rest, err := io.ReadAll(conn)
		got = append(got, rest...)
		if path == "/hang" && len(got) > 0 || bytes.HasSuffix(got, []byte("\r\n0\r\n\r\n")) {
			t.Errorf("%s: a client that left was answered %q, %v", path, got, err)
		}
	}
}

// TestStopRefusesWhatHasNotBegun checks that a request without an answer at the end of
// the drain's time is refused so that another proxy may serve it, however far it has got.
func TestStopRefusesWhatHasNotBegun(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, arriving := range []bool{false, true} {
			t.Run(fmt.Sprintf("body arriving %v, HTTP/2 %v", arriving, h2), func(t *testing.T) {
				f := newFleet(t, 2, nil)
				f.proxy.cfg.DrainTimeout = 20 * time.Millisecond
				r := testkit.Must(http.NewRequest("POST", f.url+"/hang", bytes.NewReader(prompt("m", 100))))
				stalled, unfinished := io.Pipe()
				defer unfinished.Close()
				if arriving { // of unknown length, so the estimator reads it
					r.Body, r.GetBody, r.ContentLength = stalled, nil, -1
					r.Header.Set("Expect", "100-continue") // the body is sent when it is read
				}
				client := transport(t, h2)
				client.ExpectContinueTimeout = time.Hour
				answer := make(chan *http.Response, 1)
				go func() {
					defer close(answer)
					resp, err := client.RoundTrip(r)
					if err != nil {
						t.Error(err)
						return
					}
					resp.Body.Close()
					answer <- resp
				}()
				if arriving {
					testkit.Must(unfinished.Write([]byte("{")))
				} else {
					testkit.WaitFor(t, "the request", func() bool { return f.fronts[0].hits.Load() == 1 })
				}
				f.stop()
				if resp := <-answer; resp != nil && (resp.StatusCode != 503 || resp.Header.Get(length.RefusedHeader) == "") {
					t.Errorf("%s %v, want 503 with %s", resp.Status, resp.Header, length.RefusedHeader)
				}
			})
		}
	}
}
