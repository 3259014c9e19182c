package kvport

import (
	"context"
	"fmt"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cascadeinfer/cascade/engine/api"
	"github.com/cascadeinfer/cascade/internal/testkit"
	wire "github.com/cascadeinfer/cascade/migrator/api"
	"github.com/cascadeinfer/cascade/migrator/transport"
	"github.com/cascadeinfer/cascade/migrator/transport/transporttest"
	"github.com/cascadeinfer/cascade/policies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	slots     = 8
	slotBytes = 64
	handle    = "00112233445566778899aabbccddeeff"
	digest    = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
)

// frameEngine is the other end of a Client: a connector of which the test writes each frame.
type frameEngine struct {
	t      *testing.T
	dir    string
	listen *net.UnixListener
	conn   *net.UnixConn // of the session; nil before connect
	hello  api.Hello
	memory []byte
}

// newFrameEngine listens in a new directory.
func newFrameEngine(t *testing.T) *frameEngine {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("", "kv")) // the path of t.TempDir is too long for sockets
	t.Cleanup(func() { os.RemoveAll(dir) })
	e := &frameEngine{t: t, dir: dir, listen: testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, api.Socket), Net: "unix"}))}
	t.Cleanup(func() { e.listen.Close(); e.disconnect() })
	return e
}

// accept waits for a client and reads its hello.
func (e *frameEngine) accept() {
	e.t.Helper()
	e.listen.SetDeadline(time.Now().Add(testkit.WaitTimeout()))
	e.conn = testkit.Must(e.listen.AcceptUnix())
	e.hello = *e.read().Hello
}

// connect accepts a client and sends it the welcome.
func (e *frameEngine) connect() {
	e.t.Helper()
	e.accept()
	fd := testkit.Must(unix.MemfdCreate("test", unix.MFD_CLOEXEC))
	defer unix.Close(fd)
	testkit.NoError(e.t, unix.Ftruncate(fd, slots*slotBytes))
	e.memory = testkit.Must(unix.Mmap(fd, 0, slots*slotBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
	memory := e.memory
	e.t.Cleanup(func() { unix.Munmap(memory) })
	e.sendWith(welcome, unix.UnixRights(fd))
}

var welcome = api.Frame{Welcome: &api.Welcome{
	Version: api.Version, Fingerprint: "f", Ranks: 1, Blocks: slots, Handles: []api.Handle{{Kind: api.Memfd, Bytes: slots * slotBytes}},
	Regions: []api.Region{{Stride: slotBytes, Bytes: slotBytes}},
}}

func (e *frameEngine) disconnect() {
	if e.conn != nil {
		e.conn.Close()
	}
}

func (e *frameEngine) send(f api.Frame) { e.t.Helper(); e.sendWith(f, nil) }

func (e *frameEngine) sendWith(f api.Frame, rights []byte) {
	e.t.Helper()
	_, _, err := e.conn.WriteMsgUnix(testkit.Must(f.Append(nil)), rights, nil)
	testkit.NoError(e.t, err)
}

// read reads the client's next frame.
func (e *frameEngine) read() api.Frame {
	e.t.Helper()
	e.conn.SetReadDeadline(time.Now().Add(testkit.WaitTimeout()))
	f, err := api.ReadFrame(e.conn)
	testkit.NoError(e.t, err)
	return f
}

// slot returns the bytes of a slot.
func (e *frameEngine) slot(n uint32) []byte { return e.memory[n*slotBytes : (n+1)*slotBytes] }

// offer fills slots and offers them.
func (e *frameEngine) offer(handle string, list ...uint32) {
	e.t.Helper()
	o := api.Offer{Handle: handle, Digest: digest}
	for _, n := range list {
		for i := range e.slot(n) {
			e.slot(n)[i] = byte(n + 1)
		}
		o.Blocks, o.Sums = append(o.Blocks, n), append(o.Sums, crc32.ChecksumIEEE(e.slot(n)))
	}
	e.send(api.Frame{Offer: &o})
}

// migrator is a Client with its transport, on a network of the test's.
type migrator struct {
	*Client
	set *transport.Paths
}

// exchange is the network of the migrators of a test.
type exchange struct {
	t         *testing.T
	transport transporttest.Network
	hooks
	calls sync.WaitGroup
	all   map[policies.ReplicaID]*migrator // written by the test

	mu    sync.Mutex                // guards all for the migrators, and spoil
	spoil func(*wire.FetchKVAnswer) // changes answers; nil changes none
	// beforePaths, if not nil, is called when a Client wants its paths.
	beforePaths func()
}

func newExchange(t *testing.T) *exchange {
	return &exchange{t: t, all: make(map[policies.ReplicaID]*migrator)}
}

// start runs a migrator of an engine.
func (w *exchange) start(id policies.ReplicaID, e *frameEngine, lease time.Duration, faults *transporttest.Faults) *migrator {
	w.t.Helper()
	m := &migrator{}
	m.Client = testkit.Must(New(Config{Self: id, Dir: e.dir, Network: networkOf{w, id}, Lease: lease, Incarnation: 7, Paths: func() *transport.Paths {
		if w.beforePaths != nil {
			w.beforePaths()
		}
		return m.set
	}}))
	m.set = newPaths(w.t, &w.transport, id, m.Client, faults, &w.hooks)
	w.mu.Lock()
	w.all[id] = m
	w.mu.Unlock()
	w.t.Cleanup(testkit.Run(w.t, m.Client.Run))
	return m
}

// setSpoil sets what changes answers from now on.
func (w *exchange) setSpoil(f func(*wire.FetchKVAnswer)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spoil = f
}

// networkOf is the network as one of its migrators sees it.
type networkOf struct {
	*exchange
	self policies.ReplicaID
}

// FetchKV implements Network.
func (n networkOf) FetchKV(ctx context.Context, to policies.ReplicaID, q *wire.FetchKVRequest) (*wire.FetchKVAnswer, error) {
	n.mu.Lock()
	peer, spoil := n.all[to], n.spoil
	n.mu.Unlock()
	if peer == nil {
		return nil, fmt.Errorf("no replica %s", to)
	}
	a, err := callPeer(&n.calls, func(answer func(*wire.FetchKVAnswer) error) error { return peer.Serve(ctx, n.self, q, answer) })
	if err == nil && spoil != nil {
		spoil(a)
	}
	return a, err
}
