package frontend

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/policytest"
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

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startServer runs a Server for the engine at url until the test ends.
func startServer(t testing.TB, url string, change func(*Config)) *testServer {
	t.Helper()
	lis, peers := listen(t), listen(t)
	cfg := Config{Replica: "r0", Engine: url, Edges: policies.BucketEdges(1<<16, 4), Listener: lis, PeerListener: peers,
		HealthInterval: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	if change != nil {
		change(&cfg)
	}
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.catchUpTimeout, f.closeGrace = time.Minute, 10*time.Second // a busy machine may take seconds
	ctx, cancel := context.WithCancel(context.Background())
	fr := &testServer{Server: f, url: lis.Addr().String(), peer: peers.Addr().String(), stop: cancel, done: make(chan error, 1)}
	transport := &http.Transport{DisableCompression: true}
	fr.client = &http.Client{Transport: transport}
	go func() { fr.done <- f.Run(ctx) }()
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-fr.done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	fr.waitForReady(t, true)
	return fr
}

// waitForReady waits until the server's view of its engine is ready.
func (f *testServer) waitForReady(t testing.TB, ready bool) {
	t.Helper()
	waitFor(t, "the engine to be ready, or not", func() bool { return f.Status().EngineReady == ready })
}

var waitFor = policytest.WaitFor

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

func post(t testing.TB, c *http.Client, url, path, body string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Post("http://"+url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%v after %q", err, b)
	}
	return resp, string(b)
}

var (
	idValue      = regexp.MustCompile(`"id":"(chat)?cmpl-\d+"`)
	createdValue = regexp.MustCompile(`"created":\d+`)
)

// withoutIDs masks id and created.
func withoutIDs(s string) string {
	return createdValue.ReplaceAllString(idValue.ReplaceAllString(s, `"id":ID`), `"created":CREATED`)
}
