package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/migrator/internal/openai"
	"github.com/cascadeinfer/cascade/migrator/internal/session"
	"github.com/cascadeinfer/cascade/policies"
	"github.com/cascadeinfer/cascade/policies/length"
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
	t         testing.TB
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
	fr := &testServer{Server: f, t: t, url: lis.Addr().String(), peer: peers.Addr().String(), stop: cancel, done: make(chan error, 1)}
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
	fr.waitForReady(true)
	return fr
}

// waitForReady waits until the server's view of its engine is ready.
func (f *testServer) waitForReady(ready bool) {
	f.t.Helper()
	waitFor(f.t, func() bool { return f.Status().EngineReady == ready })
}

// restart restarts the server's engine, changed as given unless that is nil, and waits until the server is open again.
func (f *testServer) restart(e *engine, change func()) {
	f.t.Helper()
	e.unhealthy.Store(true)
	f.waitForReady(false)
	if change != nil {
		change()
	}
	e.unhealthy.Store(false)
	f.waitForReady(true)
	waitFor(f.t, func() bool { return memory.listensAt(f.url) }) // a moment later
}

// awaitEnd waits until Run has returned without an error.
func (f *testServer) awaitEnd() {
	f.t.Helper()
	testkit.NoError(f.t, <-f.done)
	f.done <- nil
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

// jsonRequest returns a POST request with header fields, each a name and a value.
func jsonRequest(address, path, body string, header ...string) *http.Request {
	r, _ := http.NewRequest("POST", "http://"+address+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// tryDo sends a request and reads the answer, of which it returns what came before an error.
func tryDo(c *http.Client, r *http.Request) (*http.Response, string, error) {
	resp, err := c.Do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		err = fmt.Errorf("%w after %q", err, b)
	}
	return resp, string(b), err
}

// do is tryDo for a request that must be answered.
func do(t testing.TB, c *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	resp, text, err := tryDo(c, r)
	testkit.NoError(t, err)
	return resp, text
}

func post(t testing.TB, c *http.Client, url, path, body string) (*http.Response, string) {
	t.Helper()
	return do(t, c, jsonRequest(url, path, body))
}

// post sends a client's request with header fields.
func (f *testServer) post(path, body string, header ...string) (*http.Response, string) {
	f.t.Helper()
	return do(f.t, f.client, jsonRequest(f.url, path, body, header...))
}

// tryPost is post for goroutines other than the test's: an error fails the test, which goes on.
func (f *testServer) tryPost(path, body string) string {
	_, text, err := tryDo(f.client, jsonRequest(f.url, path, body))
	if err != nil {
		f.t.Error(err)
	}
	return text
}

// call sends a request to the server and returns its status, its refusal and its answer when it has ended.
func (f *testServer) call(method, path, body string) chan string {
	got := make(chan string, 1)
	go func() {
		r := jsonRequest(f.url, path, body)
		r.Method = method
		resp, answer, err := tryDo(f.client, r)
		if err != nil {
			answer += err.Error()
		}
		if resp == nil {
			got <- answer
			return
		}
		got <- fmt.Sprint(resp.StatusCode, " ", resp.Header.Get(length.RefusedHeader), " ", answer)
	}()
	return got
}

// start is call for a completion.
func (f *testServer) start(body string) chan string { return f.call("POST", "/v1/completions", body) }

// abandon starts a completion, waits until it has arrived somewhere, and has its client leave.
func (f *testServer) abandon(body string, arrived func()) {
	ctx, leave := context.WithCancel(f.t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := f.client.Do(jsonRequest(f.url, "/v1/completions", body).WithContext(ctx)); err == nil {
			resp.Body.Close()
		}
	}()
	arrived()
	leave()
	<-left
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
func opened(leg *wireLeg, first *openai.Chunk) session.Event {
	return session.Event{Kind: session.LegOpened, Leg: leg, Chunk: first, Replica: "r0"}
}

// network is a network in memory: tests that use it run in the virtual time of
// testing/synctest, so that no timeout depends on how busy the machine is. Its
// connections have no buffer: a write waits for the read.
type network struct {
	mu        sync.Mutex
	listeners map[string]*memListener // by address
	failures  map[string]error        // of dials, by address
	last      uint16                  // port that was given
}

var memory = network{listeners: make(map[string]*memListener), failures: make(map[string]error), last: 1000}

// failDials makes dials to a URL or address fail until the returned function is called.
func (n *network) failDials(to string, err error) (restore func()) {
	address := strings.TrimPrefix(to, "http://")
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failures[address] = &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", err)}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.failures, address)
	}
}

// listen opens a listener at a new address.
func listen() net.Listener {
	memory.mu.Lock()
	memory.last++
	address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), memory.last).String()
	memory.mu.Unlock()
	l, _ := memory.listenAt("tcp", address)
	return l
}

func (n *network) listenAt(_, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[address] != nil {
		return nil, syscall.EADDRINUSE
	}
	l := &memListener{testkit.NewPipeListener(netip.MustParseAddrPort(address)), address}
	n.listeners[address] = l
	return l, nil
}

// listensAt reports whether a listener is open at an address.
func (n *network) listensAt(address string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[address] != nil
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	l, failure := n.listeners[address], n.failures[address]
	n.mu.Unlock()
	if failure != nil {
		return nil, failure
	}
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	return l.Dial(ctx)
}

// transport returns a transport of a version of HTTP over the network.
func (n *network) transport(t testing.TB, major int) *http.Transport {
	tr := &http.Transport{DisableCompression: true, DialContext: n.dial, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(major == 1)
	tr.Protocols.SetUnencryptedHTTP2(major == 2)
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

// memListener is a listener of the network.
type memListener struct {
	*testkit.PipeListener
	address string
}

// Close implements net.Listener. The address is free again.
func (l *memListener) Close() error {
	memory.mu.Lock()
	defer memory.mu.Unlock()
	if memory.listeners[l.address] == l {
		delete(memory.listeners, l.address)
	}
	return l.PipeListener.Close()
}
