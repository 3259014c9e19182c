package handover

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits for conditions that must hold soon.
const patience = time.Minute

// settle is how long a process that has handed over waits for requests on connections that have
// brought none: clients dial some connections that they do not need.
const settle = 5 * time.Second

// process is one generation of a daemon, inside the test.
type process struct {
	t         *testing.T
	listeners Listeners
	left      chan struct{} // closed when its successor accepts
	done      chan struct{} // closed when it has ended
	stop      context.CancelFunc
}

// lines tracks the connections of a process. The process may end once each connection has ended, or
// has brought a request since the handover, whose answer redirected the client.
type lines struct {
	mu      sync.Mutex
	leaving bool
	asked   map[net.Conn]bool // have brought a request since the handover
	changed chan struct{}     // holds a token after a change
}

// line is the key of a request's connection in its context.
type line struct{}

func newLines() *lines {
	return &lines{asked: make(map[net.Conn]bool), changed: make(chan struct{}, 1)}
}

func (l *lines) change(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// state implements http.Server.ConnState.
func (l *lines) state(c net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		l.change(func() { l.asked[c] = false })
	case http.StateClosed, http.StateHijacked:
		l.change(func() { delete(l.asked, c) })
	}
}

// request records a request; it returns whether the process has handed over.
func (l *lines) request(c net.Conn) (leaving bool) {
	l.change(func() {
		leaving = l.leaving
		if _, open := l.asked[c]; open && leaving {
			l.asked[c] = true
		}
	})
	return leaving
}

// leave waits until no connection has a request in progress.
func (l *lines) leave() {
	l.change(func() { l.leaving = true })
	for silence := time.After(settle); ; {
		l.mu.Lock()
		over := !slices.Contains(slices.Collect(maps.Values(l.asked)), false)
		l.mu.Unlock()
		if over {
			return
		}
		select {
		case <-l.changed:
			silence = time.After(settle)
		case <-silence:
			return
		}
	}
}

// startProcess runs a generation at the path until it has a successor and its connections have ended, or
// until stop. It returns once the generation serves the path.
func startProcess(t *testing.T, path, address, name string) *process {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{t: t, left: make(chan struct{}), done: make(chan struct{}), stop: stop}
	claim, err := Begin(ctx, path)
	if err != nil {
		t.Error(err)
		close(p.done)
		return p
	}
	l := claim.TakeListener("clients", address)
	if l == nil {
		if l, err = net.Listen("tcp", address); err != nil {
			t.Error(err)
			claim.Abandon()
			close(p.done)
			return p
		}
	}
	gate, err := p.listeners.Add("clients", l)
	if err != nil {
		t.Error(err)
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	open := newLines()
	server := &http.Server{
		Protocols: &protocols, ConnState: open.state,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, line{}, c) },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if open.request(r.Context().Value(line{}).(net.Conn)) {
				// Over HTTP/2 this is a GOAWAY: the client sends later requests elsewhere.
				w.Header().Set("Connection", "close")
			}
			io.WriteString(w, name)
		}),
	}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(gate) })
	post, before, err := claim.Finish(ctx)
	if err != nil {
		t.Error(err)
	}
	go func() {
		defer close(p.done)
		after, err := post.Serve(ctx, Config{Listeners: &p.listeners})
		if err == nil {
			close(p.left)
		}
		defer before.Close()
		defer after.Close()
		// The requests of the connections accepted last are in transit.
		open.leave()
		ending, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Shutdown(ending); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wg.Wait()
	}()
	return p
}

func (p *process) end() {
	p.stop()
	<-p.done
}

// clients send requests without a pause, each in a different way, until the end; any failed request
// is an error.
type clients struct {
	asked atomic.Int64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func ask(t *testing.T, address string) *clients {
	ctx, stop := context.WithCancel(context.Background())
	c := &clients{stop: stop}
	h2 := func() *http.Transport {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		return &http.Transport{Protocols: &protocols}
	}
	kept := h2()
	for _, dial := range []func() (*http.Transport, bool){
		func() (*http.Transport, bool) { return &http.Transport{DisableKeepAlives: true}, true },
		func() (*http.Transport, bool) { return h2(), true },
		func() (*http.Transport, bool) { return kept, false },
	} {
		for range 2 {
			c.wg.Go(func() {
				for ctx.Err() == nil {
					tr, close := dial()
					resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://" + address)
					if err != nil {
						t.Errorf("request %d: %v", c.asked.Load(), err)
						return
					}
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					if err != nil {
						t.Error(err)
					}
					if close {
						tr.CloseIdleConnections()
					}
					c.asked.Add(1)
				}
				kept.CloseIdleConnections()
			})
		}
	}
	return c
}

// await waits until more further requests have been answered.
func (c *clients) await(t *testing.T, more int64) {
	t.Helper()
	until := c.asked.Load() + more
	testkit.WaitFor(t, "answers", func() bool { return c.asked.Load() >= until })
}

func (c *clients) end() {
	c.stop()
	c.wg.Wait()
}

// answeringProcess returns the name of the generation that answers now.
func answeringProcess(t *testing.T, address string) string {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://" + address)
	testkit.NoError(t, err)
	defer resp.Body.Close()
	name, err := io.ReadAll(resp.Body)
	testkit.NoError(t, err)
	return string(name)
}

// waitForFiles waits until no more descriptors are open than before.
func waitForFiles(t *testing.T, before int) {
	t.Helper()
	testkit.WaitFor(t, fmt.Sprintf("%d open files", before), func() bool { return testkit.OpenFiles(t) <= before })
}

// takeOver takes over at a path, and returns the server of the new process and the link to the
// preceding one, if there is one.
func takeOver(t *testing.T, path string) (*Server, *Link) {
	t.Helper()
	c, err := Begin(t.Context(), path)
	testkit.NoError(t, err)
	server, link, err := c.Finish(t.Context())
	if err != nil || (link == nil) != (c.Process == 0) {
		t.Fatal(link, err)
	}
	return server, link
}

// addListener adds a listener on a free port, and returns its socket and the listener to serve.
func addListener(t *testing.T, d *Listeners, name string) (socket, added net.Listener) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err == nil {
		added, err = d.Add(name, socket)
	}
	testkit.NoError(t, err)
	return socket, added
}

// TestUpgradeRefusesNoConnection hands over twenty times while clients connect continuously.
func TestUpgradeRefusesNoConnection(t *testing.T) {
	path, address := filepath.Join(t.TempDir(), "s"), testkit.Addresses(t, 1)[0]
	warm := startProcess(t, path, address, "warm")
	warm.end()
	before := testkit.OpenFiles(t)
	now := startProcess(t, path, address, "0")
	c := ask(t, address)
	c.await(t, 20)
	for i := range 20 {
		next := startProcess(t, path, address, fmt.Sprint(i+1))
		select {
		case <-now.left:
		case <-time.After(patience):
			t.Fatal("the old process does not leave")
		}
		c.await(t, 20)
		now.end()
		now = next
	}
	c.await(t, 20)
	c.end()
	if got := answeringProcess(t, address); got != "20" {
		t.Errorf("generation %s answers last", got)
	}
	now.end()
	t.Logf("%d requests over 20 handovers", c.asked.Load())
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	if _, err := net.DialTimeout("tcp", address, patience); err == nil {
		t.Error("a process still listens")
	}
	waitForFiles(t, before)
}

// TestRacingProcesses starts many processes at once: they take over from each other in some order,
// and one remains.
func TestRacingProcesses(t *testing.T) {
	path, address := filepath.Join(t.TempDir(), "s"), testkit.Addresses(t, 1)[0]
	first := startProcess(t, path, address, "first")
	c := ask(t, address)
	var mu sync.Mutex
	all := []*process{first}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			p := startProcess(t, path, address, fmt.Sprint(i))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, p)
		})
	}
	wg.Wait()
	c.await(t, 20)
	// All but the last have handed over, or are about to.
	testkit.WaitFor(t, "one process that accepts", func() bool {
		left := 0
		for _, p := range all {
			select {
			case <-p.left:
				left++
			default:
			}
		}
		return left >= len(all)-1
	})
	c.end()
	for _, p := range all {
		p.end()
	}
}
