package frontend

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestLogsNameTheRequest: every line about a request has the id that its proxy gave it:
// of one that is refused, of one that is rescued and of one that is lost.
func TestLogsNameTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		f, r := newRescueFleet(t, 2, func(c *Config) {
			c.RescueTimeout, c.Logger = time.Second, log.Logger()
		})
		send := func(id string) string {
			req := testkit.Must(http.NewRequest("POST", "http://"+f.servers[0].url+"/v1/completions", strings.NewReader(longRequest)))
			req.Header.Set("X-Request-Id", id)
			resp := testkit.Must(f.servers[0].client.Do(req))
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			return string(b)
		}
		sendAndKill := func(id string) {
			f.setPace(20 * time.Millisecond)
			done := make(chan string, 1)
			go func() { done <- send(id) }()
			f.waitForStream(3)
			f.engines[0].killAll()
			<-done
		}
		sendAndKill("rescued")
		r.setTargets()
		f.engines[0].sendEvents("", true)
		send(strings.Repeat("refused", 100))
		var about int
		for line := range strings.Lines(log.String()) {
			for _, event := range []string{"stream lost its engine", "stream goes on at another replica", "engine was lost", "request not begun"} {
				if !strings.Contains(line, event) {
					continue
				}
				about++
				if !strings.Contains(line, "request_id=rescued ") && !strings.Contains(line, "request_id=refusedrefused") || !strings.Contains(line, " request=r0/") || len(line) > 1024 {
					t.Errorf("no id in %s", line)
				}
			}
		}
		if about < 3 {
			t.Errorf("%d lines are about requests:\n%s", about, &log)
		}
	})
}
