package handover

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
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

// process is one generation of a daemon, inside the test.
type process struct {
	listeners Listeners
	left      chan struct{} // closed when its successor accepts
	done      chan struct{} // closed when it has ended
	stop      context.CancelFunc
}

// startProcess runs a generation at the path that answers each connection with its name, until it has a successor or
// until stop. It returns once the generation serves the path.
func startProcess(t *testing.T, path, address, name string) *process {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &process{left: make(chan struct{}), done: make(chan struct{}), stop: stop}
	claim, err := Begin(ctx, path)
	if err != nil {
		t.Error(err)
		close(p.done)
		return p
	}
	l := claim.TakeListener("clients", address)
	if l == nil {
		l, err = net.Listen("tcp", address)
	}
	var gate net.Listener
	if err == nil {
		gate, err = p.listeners.Add("clients", l)
	}
	if err != nil {
		t.Error(err)
		claim.Abandon()
		close(p.done)
		return p
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := gate.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				io.WriteString(conn, name)
			})
		}
	})
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
		before.Close()
		after.Close()
		gate.Close()
		serving.Wait()
	}()
	return p
}

func (p *process) end() {
	p.stop()
	<-p.done
}

// clients connect without a pause until the end; any connection without an answer is an error.
type clients struct {
	asked atomic.Int64
	stop  context.CancelFunc
	wg    sync.WaitGroup
}

func startClients(t *testing.T, address string) *clients {
	ctx, stop := context.WithCancel(context.Background())
	c := &clients{stop: stop}
	for range 6 {
		c.wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := ask(address); err != nil {
					t.Errorf("connection %d: %v", c.asked.Load(), err)
					return
				}
				c.asked.Add(1)
			}
		})
	}
	return c
}

// ask returns the name of the generation that answers now.
func ask(address string) (name string, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(patience))
	text, err := io.ReadAll(conn)
	if err == nil && len(text) == 0 {
		err = io.ErrUnexpectedEOF
	}
	return string(text), err
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
	c := startClients(t, address)
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
	if got, err := ask(address); got != "20" {
		t.Errorf("generation %s answers last, %v", got, err)
	}
	now.end()
	t.Logf("%d connections over 20 handovers", c.asked.Load())
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
	c := startClients(t, address)
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
