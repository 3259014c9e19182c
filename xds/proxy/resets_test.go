package proxy

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestAttackResets resets requests as soon as they are sent. Their connection gets a GOAWAY after some
// hundred, and a request that runs on it gets its answer; a client that resets a few, or late, keeps its
// connection.
func TestAttackResets(t *testing.T) {
	f := newFleet(t, 2, nil)
	t.Cleanup(func() {
		if n := f.hits(); n > 5000 {
			t.Errorf("%d requests reached a replica", n)
		}
	})
	for name, c := range map[string]struct {
		requests, together int
		wait               time.Duration // before the resets
		closed             bool
	}{
		"many": {requests: 20_000, together: 1, closed: true}, "few": {requests: 300, together: 1},
		"late": {requests: 600, together: 200, wait: 2 * time.Second}, // of which a busy machine may take one to begin them
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			framer := dialHTTP2(t, strings.TrimPrefix(f.url, "http://"))
			id := uint32(1)
			framer.request(id, true, "/sse?n=6&gap=1s")
			for range c.requests / c.together {
				for range c.together {
					id += 2
					framer.request(id, true, "/hang")
				}
				time.Sleep(c.wait)
				for n := range uint32(c.together) {
					testkit.NoError(t, framer.WriteRSTStream(id-2*n, http2.ErrCodeCancel))
				}
			}
			closed, done := false, false
			for !done {
				switch frame := testkit.Must(framer.ReadFrame()).(type) {
				case *http2.GoAwayFrame:
					closed = true
				case *http2.DataFrame:
					done = bytes.Contains(frame.Data(), []byte("[DONE]"))
				}
			}
			if closed != c.closed {
				t.Errorf("the connection got a GOAWAY: %v", closed)
			}
		})
	}
}
