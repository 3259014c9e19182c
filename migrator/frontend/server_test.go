package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
)

// TestMain checks for goroutine leaks. net/http lingers for half a second on a
// connection that it closes before the client does.
func TestMain(m *testing.M) {
	if engine := os.Getenv(benchEngineVariable); engine != "" {
		runBenchServer(engine) // a server in a process of its own, for benchmarks
		return
	}
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// testServer is a running Server with its listeners.
type testServer struct {
	*Server
	url, peer string // host:port of both listeners
	client    *http.Client
	stop      context.CancelFunc
	done      chan error
}

// runServer runs a test of a server and its engine in virtual time.
func runServer(t *testing.T, change func(*Config), test func(t *testing.T, e *engine, f *testServer)) {
	synctest.Test(t, func(t *testing.T) {
		e := newEngine(t)
		test(t, e, startServer(t, e.URL, change))
	})
}

// runInBubble runs a subtest in virtual time.
func runInBubble(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// startServer runs a Server for the engine at url until the test ends.
func startServer(t testing.TB, url string, change func(*Config)) *testServer {
	t.Helper()
	lis, peers := listen(), listen()
	cfg := Config{Replica: "r0", Engine: url, Edges: policies.BucketEdges(1<<16, 4), Listener: lis, PeerListener: peers,
		Listen: memory.listenAt, Dial: memory.dial, HealthInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	if change != nil {
		change(&cfg)
	}
	f := testkit.Must(New(cfg))
	ctx, cancel := context.WithCancel(context.Background())
	fr := &testServer{Server: f, url: lis.Addr().String(), peer: peers.Addr().String(), stop: cancel, done: make(chan error, 1)}
	fr.client = &http.Client{Transport: memory.transport(t, 1)}
	go func() { fr.done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-fr.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := f.bodies.Held() + f.peerBodies.Held() + f.answers.Held(); n != 0 {
			t.Errorf("%d bytes of requests that have ended are still held", n)
		}
	})
	fr.waitForReady(t, true)
	return fr
}

// waitForReady waits until the server's view of its engine is ready.
func (f *testServer) waitForReady(t testing.TB, ready bool) {
	t.Helper()
	waitFor(t, func() bool { return f.Status().EngineReady == ready })
}

// within returns a function that fails the test if more time has passed: without it a
// test waits for any timeout, because virtual time costs nothing.
func within(t testing.TB, most time.Duration) func() {
	begun := time.Now()
	return func() {
		t.Helper()
		if took := time.Since(begun); took > most {
			t.Errorf("it took %v, want %v at most", took, most)
		}
	}
}

// refusesConnections reports whether the clients' address takes no connections.
func (f *testServer) refusesConnections() bool {
	conn, err := memory.dial(context.Background(), "tcp", f.url)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// waitFor waits until a condition holds.
func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("timed out waiting for a condition")
		}
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

func post(t testing.TB, c *http.Client, url, path, body string) (*http.Response, string) {
	t.Helper()
	resp, text, err := postBody(c, url, path, body)
	testkit.NoError(t, err)
	return resp, text
}

// tryPost is post for goroutines other than the test's: an error fails the test, which goes on with a response without a
// status.
func tryPost(t testing.TB, c *http.Client, url, path, body string) (*http.Response, string) {
	t.Helper()
	resp, text, err := postBody(c, url, path, body)
	if err != nil {
		t.Error(err)
		return new(http.Response), text
	}
	return resp, text
}

func postBody(c *http.Client, url, path, body string) (*http.Response, string, error) {
	resp, err := c.Post("http://"+url+path, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, string(b), fmt.Errorf("%w after %q", err, b)
	}
	return resp, string(b), nil
}

var (
	idValue      = regexp.MustCompile(`"id":"(chat)?cmpl-\d+"`)
	createdValue = regexp.MustCompile(`"created":\d+`)
)

// withoutIDs masks id and created.
func withoutIDs(s string) string {
	return createdValue.ReplaceAllString(idValue.ReplaceAllString(s, `"id":ID`), `"created":CREATED`)
}

// firstDifference describes the first event in which a stream differs from the
// wanted one; it returns "" for none.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n\n"), strings.Split(want, "\n\n")
	for i := range max(len(g), len(w)) {
		switch {
		case i >= len(g):
			return fmt.Sprintf("event %d is missing: %s", i, w[i])
		case i >= len(w):
			return fmt.Sprintf("event %d is one too many: %s", i, g[i])
		case g[i] != w[i]:
			return fmt.Sprintf("event %d is\n%s\nwant\n%s", i, g[i], w[i])
		}
	}
	return ""
}

func newTestStream(ctx context.Context, out clientWriter, cancel context.CancelFunc) *Stream {
	f := &Server{cfg: Config{Replica: "r0"}}
	return f.newStream(ctx, session.Config{}, out, cancel)
}

// opened is the event with which a stream begins.
func opened(leg Leg, first *openai.Chunk) session.Event {
	return session.Event{Kind: session.LegOpened, Leg: leg, Chunk: first, Replica: "r0"}
}
