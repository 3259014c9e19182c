package peer

import (
	"context"
	"net"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/policies"
)

// network is an in-memory network of addresses. An address that is frozen accepts everything
// written to it and delivers nothing, as a frozen host does.
type network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
	frozen    map[string]chan struct{} // closed when it thaws
	failure   error                    // of every dial
}

// newNetwork returns a network whose nodes stop with the test.
func newNetwork(t *testing.T) *network {
	t.Cleanup(func() { time.Sleep(time.Minute) }) // HTTP/2 connections end on timers of their own
	return &network{listeners: make(map[string]*bufconn.Listener), frozen: make(map[string]chan struct{})}
}

// node starts a node at an address.
func (w *network) node(t *testing.T, id, address string, incarnation uint64) *node {
	l := bufconn.Listen(1 << 16)
	w.setListener(address, l)
	return startNode(t, Config{Self: policies.ReplicaID(id), Incarnation: incarnation, Dial: w.dialer(address)}, l, address)
}

// setListener makes an address lead to a listener, nil for none, and returns the one before.
func (w *network) setListener(address string, l *bufconn.Listener) (before *bufconn.Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, w.listeners[address] = w.listeners[address], l
	return before
}

// kill ends a process: its address refuses connections from then on.
func (w *network) kill(n *node) {
	w.setListener(n.address, nil)
	n.stop()
}

// freeze stops all bytes from and to an address, until the function it returns
// is called.
func (w *network) freeze(address string) (thaw func()) {
	c := make(chan struct{})
	w.mu.Lock()
	w.frozen[address] = c
	w.mu.Unlock()
	return func() {
		w.mu.Lock()
		delete(w.frozen, address)
		w.mu.Unlock()
		close(c)
	}
}

func (w *network) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, to string) (net.Conn, error) {
		w.mu.Lock()
		l, failure := w.listeners[to], w.failure
		w.mu.Unlock()
		if failure != nil {
			return nil, &net.OpError{Op: "dial", Net: "mem", Err: failure}
		}
		if l == nil {
			return nil, &net.OpError{Op: "dial", Net: "mem", Err: syscall.ECONNREFUSED}
		}
		c, err := l.DialContext(ctx)
		if err != nil {
			return nil, err
		}
		return &wire{Conn: c, network: w, ends: [2]string{from, to}, closed: make(chan struct{})}, nil
	}
}

// wire is a connection between two addresses.
type wire struct {
	net.Conn
	network *network
	ends    [2]string
	once    sync.Once
	closed  chan struct{}
}

func (c *wire) wait() {
	for {
		c.network.mu.Lock()
		f := c.network.frozen[c.ends[0]]
		if f == nil {
			f = c.network.frozen[c.ends[1]]
		}
		c.network.mu.Unlock()
		if f == nil {
			return
		}
		select {
		case <-f:
		case <-c.closed:
			return
		}
	}
}

func (c *wire) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.wait()
	return n, err
}

func (c *wire) Write(b []byte) (int, error) {
	c.wait()
	return c.Conn.Write(b)
}

func (c *wire) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// waitForGone waits for Gone and returns how long it took.
func waitForGone(t *testing.T, n *node, most time.Duration) time.Duration {
	t.Helper()
	since := time.Now()
	select {
	case <-n.gone:
	case <-time.After(most):
		t.Errorf("not gone after %v: a peer of %s", most, n.cfg.Self)
	}
	return time.Since(since)
}

func TestBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		a, b := w.node(t, "a", "a:1", 1), w.node(t, "b", "b:1", 1)
		setAllPeers(a, b)
		a.Watch([]policies.ReplicaID{"b", "a"})
		time.Sleep(10*time.Second + defaultInterval/2)
		// A Heartbeat is answered in each interval, and none is passed to Handle.
		if p := a.peer("b"); !p.watched || time.Since(p.lastHeard) > defaultInterval || b.peer("a").watched || len(a.came)+len(b.came) != 0 {
			t.Errorf("%+v; %d handled", p, len(a.came)+len(b.came))
		}
		b.Watch([]policies.ReplicaID{"a"})
		// No peer is watched: the streams are closed and nothing is sent.
		a.Watch(nil)
		b.Watch(nil)
		time.Sleep(2 * defaultIdle)
		if p := a.peer("b"); p.connected || p.incoming != 0 || p.watched {
			t.Errorf("unwatched: %+v", p)
		}
		a.Send("b", market(1))
		if g := <-b.came; g.from != "a" {
			t.Errorf("from %s", g.from)
		}
	})
}

// TestHeartbeatInterval counts the Heartbeats that a watched peer gets.
func TestHeartbeatInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		a, b := w.node(t, "a", "a:1", 1), new(countingServer)
		w.serve(t, "b:1", b)
		a.SetPeers(map[policies.ReplicaID]string{"b": "b:1"})
		a.Watch([]policies.ReplicaID{"b"})
		time.Sleep(10*defaultInterval + defaultInterval/2)
		if n := b.read.Load(); n < 9 || n > 11 {
			t.Errorf("%d Heartbeats in ten intervals", n)
		}
	})
}

// TestSlowHandlerBlocksNoOtherPeer blocks the goroutine of one peer's stream.
func TestSlowHandlerBlocksNoOtherPeer(t *testing.T) {
	hold := make(chan struct{})
	came := make(chan policies.ReplicaID, 10)
	a := startOnTCP(t, Config{Self: "a", Handle: func(from policies.ReplicaID, _ *api.Envelope) {
		if from == "b" {
			<-hold
		}
		came <- from
	}})
	b, c := startOnTCP(t, Config{Self: "b"}), startOnTCP(t, Config{Self: "c"})
	setAllPeers(a, b, c)
	b.Send("a", market(1))
	c.Send("a", market(1))
	if from := <-came; from != "c" {
		t.Errorf("from %s first", from)
	}
	close(hold)
	<-came
}

// TestLocalFaultIsNotThePeers: a peer whose connection broke is not gone while this
// process cannot dial, however long that takes; it is if it then does not answer.
func TestLocalFaultIsNotThePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newNetwork(t)
		a, b := w.node(t, "a", "a:1", 1), w.node(t, "b", "b:1", 1)
		setAllPeers(a, b)
		a.Watch([]policies.ReplicaID{"b"})
		time.Sleep(2 * defaultInterval)
		w.mu.Lock()
		w.failure = syscall.EMFILE
		w.mu.Unlock()
		w.kill(b)
		time.Sleep(10 * defaultSilence)
		select {
		case <-a.gone:
			t.Error("the peer counts as gone")
		default:
		}
		w.mu.Lock()
		w.failure = nil
		w.mu.Unlock()
		waitForGone(t, a, 2*defaultSilence)
	})
}
