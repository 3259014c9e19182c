package frontend

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestFirstRequest checks that a connection that is dialled before its request
// stays open as long as one between two requests, and that the header timeout
// counts from the first byte.
func TestFirstRequest(t *testing.T) {
	const head = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, test := range map[string]struct {
		wait  time.Duration // before each piece
		send  []string
		close time.Duration // after the last piece, without an answer; 0: it is answered
	}{
		"at once":     {0, []string{head}, 0},
		"late":        {clientIdleConn - 1, []string{head}, 0},
		"torn":        {headerTimeout - 1, []string{head[:14], head[14:]}, 0}, // http.Server reads the first 14 bytes separately
		"never":       {0, nil, clientIdleConn},
		"half a head": {time.Minute, []string{head[:14]}, headerTimeout},
		"slow head":   {headerTimeout / 2, []string{head[:1], head[1:2]}, headerTimeout / 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			lis := listen()
			d := newListeners(&Server{cfg: Config{WriteTimeout: defaultWriteTimeout}})
			s := d.serve(t.Context(), lis, &d.fromClients, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			here := testkit.Must(memory.dial(t.Context(), "tcp", lis.Addr().String()))
			defer func() {
				here.Close()
				synctest.Wait()
				s.Close()
				d.wg.Wait()
			}()
			for i, piece := range test.send {
				time.Sleep(test.wait)
				if i+1 < len(test.send) || test.close > 0 {
					if _, err := io.WriteString(here, piece); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
					continue
				}
				go io.WriteString(here, piece)
				resp, err := http.ReadResponse(bufio.NewReader(here), nil)
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %v, %+v", name, err, resp)
				}
				return
			}
			begun := time.Now()
			got, err := io.ReadAll(here)
			if len(got) > 0 || err != nil && !errors.Is(err, io.ErrClosedPipe) || time.Since(begun) != test.close {
				t.Errorf("%s: closed after %v with %q (%v), want %v and nothing", name, time.Since(begun), got, err, test.close)
			}
		})
	}
}
