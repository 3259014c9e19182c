package processes

import (
	"net"
	"strings"
	"testing"

	"github.com/cascadeinfer/cascade/cmd/internal/e2e/harness"
	"github.com/cascadeinfer/cascade/cmd/internal/loglimit"
	"github.com/cascadeinfer/cascade/internal/testkit"
)

// TestDescriptorsRunOut takes all file descriptors of a migrator that clients can take. Its
// engine stays, its streams go on, new requests go to the other replica, and it serves again
// once the descriptors are free.
func TestDescriptorsRunOut(t *testing.T) {
	t.Parallel()
	const limit = 256
	f := newFleet(t, setup{replicas: 2, limits: map[string]int{"r0": limit}})
	r0 := f.replicas[0]
	r0.migrator.WaitForLog("file descriptor limit is low.*limit=256")
	var running []*harness.Stream
	for i := range 16 { // at one replica and the other
		running = append(running, f.Stream(harness.Prompt(i, 200, forever)))
	}
	running = append(running, f.Start("http://"+r0.Address, harness.Prompt(100, 200, forever)))
	f.WaitForGrowth(running)

	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for range 2 * limit {
		c, err := net.Dial("tcp", r0.Address)
		testkit.NoError(t, err)
		held = append(held, c)
	}
	r0.migrator.WaitForLog("connection closed: few file descriptors are left")
	f.WaitFor("r0 is not ready", func() bool {
		_, err := f.Get("http://" + r0.Admin + "/readyz")
		return err != nil && strings.Contains(err.Error(), "few file descriptors are left")
	})
	var later []*harness.Stream
	for i := range 32 {
		later = append(later, f.Stream(harness.Prompt(200+i, 200, 400)))
	}
	f.WaitForEvents(running, 200) // a second, in which health checks pass
	for i, s := range later {
		if err := s.Whole(); err != nil {
			t.Errorf("stream %d of those that came later: %v", i, err)
		}
	}
	f.RequireTexts(running)
	for _, c := range held {
		c.Close()
	}
	f.awaitURL("http://"+r0.Admin+"/readyz", "ready")
	f.awaitURL("http://"+r0.Admin+"/metrics", `cascade_headroom_refusals_total\{resource="descriptors"\} [1-9]`)
	text := r0.migrator.Log.String()
	for _, wrong := range []string{"engine stopped answering", "lost its engine", "too many open files"} {
		if strings.Contains(text, wrong) {
			t.Errorf("%q was logged", wrong)
		}
	}
	if n := strings.Count(text, "connection closed"); n > loglimit.PerSubject+1 {
		t.Errorf("closed connections are logged %d times", n)
	}
}
