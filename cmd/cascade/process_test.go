package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

// running is a command line that runs inside the test.
type running struct {
	t    *testing.T
	args string
	out  testkit.Log // standard output and error
	stop context.CancelFunc
	code chan int
	gone chan struct{} // closed when the command has ended
	once sync.Once
}

// start runs a command line until end, or the end of the test.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	d := &running{t: t, args: strings.Join(args, " "), stop: stop, code: make(chan int, 1), gone: make(chan struct{})}
	go func() {
		defer close(d.gone)
		d.code <- run(ctx, args, &d.out, &d.out)
	}()
	t.Cleanup(func() {
		d.end()
		if t.Failed() {
			t.Logf("cascade %s:\n%s", d.args, d.out.String())
		}
	})
	return d
}

// end stops the daemon and checks that it exits with code 0.
func (d *running) end() {
	d.stop()
	d.once.Do(func() {
		select {
		case code := <-d.code:
			if code != 0 {
				d.t.Errorf("cascade %s ends with code %d", d.args, code)
			}
		case <-time.After(patience):
			d.t.Errorf("cascade %s did not end", d.args)
		}
	})
}

// await waits until the output of the daemon matches. It fails at once if the daemon ends without.
func (d *running) await(pattern string) {
	d.t.Helper()
	re := regexp.MustCompile(pattern)
	testkit.WaitFor(d.t, fmt.Sprintf("cascade %s to write %q", d.args, pattern), func() bool {
		ended := false
		select {
		case <-d.gone:
			ended = true
		default:
		}
		if re.MatchString(d.out.String()) {
			return true
		}
		if ended {
			d.t.Fatalf("cascade %s ended and did not write %q", d.args, pattern)
		}
		return false
	})
}

// runFor runs a command line and returns its exit code and output.
func runFor(ctx context.Context, args ...string) (code int, output string) {
	out := new(testkit.Log)
	code = run(ctx, args, out, out)
	return code, out.String()
}

// runCommand runs a command line, which must succeed, and returns its output.
func runCommand(t *testing.T, args ...string) string {
	t.Helper()
	code, output := runFor(t.Context(), args...)
	if code != 0 {
		t.Fatalf("cascade %s ends with code %d: %s", strings.Join(args, " "), code, output)
	}
	return output
}

// site has the fleet file of one replica and its addresses.
type site struct {
	file                                        string
	proxy, control, admin, engine, front, peers string
}

// newSite writes the fleet file, with further lines.
func newSite(t *testing.T, more string) site {
	t.Helper()
	a := testkit.Addresses(t, 6)
	s := site{file: filepath.Join(t.TempDir(), "fleet.yaml"), proxy: a[0], control: a[1], admin: a[2], engine: a[3], front: a[4], peers: a[5]}
	s.write(t, more)
	return s
}

func (s site) write(t *testing.T, more string) {
	t.Helper()
	text := fmt.Sprintf(`models: [{name: llama, context: 8192, profile: h200-llama-3.1-8b, kv_tokens: 65536}]
replicas:
- {id: r0, address: %q, peer: %q, engine: "http://%s"}
%s
`, s.front, s.peers, s.engine, more)
	if !strings.Contains(more, "proxy:") {
		text += fmt.Sprintf("proxy: {listen: %q, nodes: [edge, edge-2]}\n", s.proxy)
	}
	if !strings.Contains(more, "control:") {
		text += fmt.Sprintf("control: {listen: %q, admin: %q}\n", s.control, s.admin)
	}
	testkit.NoError(t, os.WriteFile(s.file, []byte(text), 0o600))
}

// awaitURL waits until GET answers 200 and matches.
func awaitURL(t *testing.T, url, pattern string) string {
	t.Helper()
	body, err := awaitBody(url, pattern, func(status int) bool { return status == http.StatusOK })
	testkit.NoError(t, err)
	return body
}
