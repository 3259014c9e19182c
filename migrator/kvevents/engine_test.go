package kvevents_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cascadeinfer/cascade/internal/testkit"
	"github.com/cascadeinfer/cascade/internal/zmtp"
	"github.com/cascadeinfer/cascade/migrator/internal/loadtracker"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies/prefix"
)

var (
	live   = netip.MustParseAddrPort("127.0.0.1:5557")
	replay = netip.MustParseAddrPort("127.0.0.1:5558")
)

// eagerConn is a pipe whose writes do not wait for the reader, as those of sockets do not.
type eagerConn struct {
	net.Conn
	writes chan []byte
	once   sync.Once
}

func newEagerConn(c net.Conn) *eagerConn {
	e := &eagerConn{Conn: c, writes: make(chan []byte, 4096)}
	go func() {
		for b := range e.writes {
			if _, err := c.Write(b); err != nil {
				c.Close()
			}
		}
		c.Close()
	}()
	return e
}

func (e *eagerConn) Write(b []byte) (int, error) {
	e.writes <- slices.Clone(b)
	return len(b), nil
}

func (e *eagerConn) Close() error {
	e.once.Do(func() { close(e.writes) })
	return nil
}

// engine publishes batches and replays them. Each batch stores one block, a prompt of its own.
type engine struct {
	t       *testing.T
	publish *testkit.PipeListener // of the Subscriber
	replays *testkit.PipeListener // of the engine
	conn    *zmtp.Conn
	raw     net.Conn // of conn

	mu     sync.Mutex
	next   uint64
	kept   int  // batches that a replay brings, at most
	cutOff int  // answers after which replays end without the end, 0 for never
	silent bool // replays are not answered
	plain  bool // the answers of replays name no topic, as those of older engines
	asked  []uint64
	begin  uint64 // the first id of the prompts of this run
}

const blockTokens = 4

// payload is a batch that stores one block, the number's.
func (e *engine) payload(seq uint64) []byte {
	b := []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91}
	text := func(s string) { b = append(append(b, 0xa0|byte(len(s))), s...) }
	b = append(b, 0x84)
	text("type")
	text("BlockStored")
	text("block_hashes")
	b = binary.BigEndian.AppendUint64(append(b, 0x91, 0xcf), e.begin+seq)
	text("token_ids")
	b = append(b, 0x90|blockTokens)
	for range blockTokens {
		b = binary.BigEndian.AppendUint32(append(b, 0xce), uint32(e.begin+seq))
	}
	text("block_size")
	return append(b, blockTokens, 0)
}

// connect opens a connection to the Subscriber, as an engine that has started does.
func (e *engine) connect() {
	e.t.Helper()
	c, err := e.publish.Dial(context.Background())
	testkit.NoError(e.t, err)
	e.raw = newEagerConn(c)
	if e.conn, err = zmtp.Open(e.raw, "PUB", "SUB"); err != nil {
		e.t.Fatal(err)
	}
	sub, err := e.conn.Receive(time.Minute)
	if err != nil || len(sub) != 1 || string(sub[0]) != "\x01kv@r1" {
		e.t.Fatalf("subscription %q, %v", sub, err)
	}
	synctest.Wait()
}

// restart is another run of the engine.
func (e *engine) restart() {
	e.conn.Close()
	e.mu.Lock()
	e.next, e.begin = 0, e.begin+1000
	e.mu.Unlock()
	synctest.Wait()
	e.connect()
}

// send publishes n batches, or loses them.
func (e *engine) send(n int, lost bool) {
	e.t.Helper()
	for range n {
		e.mu.Lock()
		seq := e.next
		e.next++
		e.mu.Unlock()
		if !lost {
			e.sendFrames([]byte("kv@r1"), binary.BigEndian.AppendUint64(nil, seq), e.payload(seq))
		}
	}
	synctest.Wait()
}

func (e *engine) sendFrames(frames ...[]byte) {
	e.t.Helper()
	testkit.NoError(e.t, e.conn.Send(frames...))
	synctest.Wait()
}

// serveReplays answers until the listener is closed.
func (e *engine) serveReplays() {
	for {
		c, err := e.replays.Accept()
		if err != nil {
			return
		}
		e.serveReplay(newEagerConn(c))
	}
}

func (e *engine) serveReplay(c net.Conn) {
	conn, err := zmtp.Open(c, "ROUTER", "DEALER")
	if err != nil {
		return
	}
	defer conn.Close()
	request, err := conn.Receive(time.Minute)
	if err != nil || len(request) != 2 || len(request[0]) != 0 || len(request[1]) != 8 {
		e.t.Errorf("replay request %q, %v", request, err)
		return
	}
	from := binary.BigEndian.Uint64(request[1])
	e.mu.Lock()
	e.asked = append(e.asked, from)
	next, cutOff, silent, plain := e.next, e.cutOff, e.silent, e.plain
	if next > uint64(e.kept) {
		from = max(from, next-uint64(e.kept))
	}
	e.mu.Unlock()
	for seq := from; seq < next && !silent; seq++ {
		if number := binary.BigEndian.AppendUint64(nil, seq); plain {
			conn.Send(nil, number, e.payload(seq))
		} else {
			conn.Send(nil, []byte("kv@r1"), number, e.payload(seq))
		}
		if cutOff--; cutOff == 0 {
			silent = true
		}
	}
	switch {
	case silent:
	case plain:
		conn.Send(nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
	default:
		conn.Send(nil, nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
	}
	conn.Receive(time.Hour) // until the other side has read all
}

// index is what a front end knows of its engine's cache, and when that counted.
type index struct {
	*loadtracker.Prefixes
	live []bool
}

func newIndex() *index { return &index{Prefixes: loadtracker.NewPrefixes(1 << 18)} }

// holds returns whether the block that a batch stores is held.
func (x *index) holds(e *engine, seq uint64) bool {
	return x.Match(prefix.Root("m", "", ""), slices.Repeat([]uint32{uint32(e.begin + seq)}, blockTokens+1)) == blockTokens
}

// test runs a Subscriber in virtual time, with an engine.
func test(t *testing.T, with func(e *engine, x *index, s *kvevents.Subscriber)) {
	t.Helper()
	testLogged(t, new(testkit.Log), with)
}

// testLogged is test with a log.
func testLogged(t *testing.T, log *testkit.Log, with func(e *engine, x *index, s *kvevents.Subscriber)) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, publish: testkit.NewPipeListener(live), replays: testkit.NewPipeListener(replay), kept: 1000}
		x := newIndex()
		s, err := kvevents.New(kvevents.Config{
			Listen: live.String(), Replay: replay.String(), Topic: "kv@r1", Model: "m", Index: x,
			SetLive: func(now bool) {
				x.live = append(x.live, now)
				x.SetLive(now)
			},
			Log: log.Logger(),
			ListenTCP: func(_ context.Context, address string) (net.Listener, error) {
				if address != live.String() {
					t.Errorf("listens at %s", address)
				}
				return e.publish, nil
			},
			DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
				if address != replay.String() {
					t.Errorf("dials %s", address)
				}
				c, err := e.replays.Dial(ctx)
				if err != nil {
					return nil, err
				}
				return newEagerConn(c), nil
			},
		})
		testkit.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		done.Go(e.serveReplays)
		with(e, x, s)
		cancel()
		e.replays.Close()
		if e.conn != nil {
			e.conn.Close()
		}
		done.Wait()
		if n := len(x.live); n > 0 && x.live[n-1] {
			t.Error("the index still counts after Run")
		}
	})
}

// check checks that the blocks of the batches from first on are held, and no others.
func check(t *testing.T, e *engine, x *index, s *kvevents.Subscriber, first uint64, live bool) {
	t.Helper()
	for seq := range e.next {
		if held := x.holds(e, seq); held != (seq >= first) {
			t.Errorf("batch %d of %d is held: %v", seq, e.next, held)
		}
	}
	if got := uint64(x.Status().Blocks); got != e.next-first {
		t.Errorf("%d blocks are held, want %d", got, e.next-first)
	}
	if s.Status().Live != live {
		t.Errorf("status %+v, want live %v", s.Status(), live)
	}
}
