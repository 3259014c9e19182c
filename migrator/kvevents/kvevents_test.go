package kvevents_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cascadeinfer/cascade/migrator/internal/zmtp"
	"github.com/cascadeinfer/cascade/migrator/kvevents"
	"github.com/cascadeinfer/cascade/policies/prefix"
	"github.com/cascadeinfer/cascade/policies/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

	mu     sync.Mutex
	next   uint64
	kept   int  // batches that a replay brings, at most
	cutOff int  // answers after which replays end without the end, 0 for never
	silent bool // replays are not answered
	asked  []uint64
	begin  uint64 // the first id of the prompts of this run
}

const blockTokens = 4

// payload is a batch that stores one block, the number's.
func (e *engine) payload(seq uint64) []byte {
	b := []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x84}
	text := func(s string) { b = append(append(b, 0xa0|byte(len(s))), s...) }
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
	if err != nil {
		e.t.Fatal(err)
	}
	if e.conn, err = zmtp.Open(newEagerConn(c), "PUB", "SUB"); err != nil {
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
	if err := e.conn.Send(frames...); err != nil {
		e.t.Fatal(err)
	}
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
	next, cutOff, silent := e.next, e.cutOff, e.silent
	if next > uint64(e.kept) {
		from = max(from, next-uint64(e.kept))
	}
	e.mu.Unlock()
	for seq := from; seq < next && !silent; seq++ {
		conn.Send(nil, []byte("kv@r1"), binary.BigEndian.AppendUint64(nil, seq), e.payload(seq))
		if cutOff--; cutOff == 0 {
			silent = true
		}
	}
	if !silent {
		conn.Send(nil, nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil)
	}
	conn.Receive(time.Hour) // until the other side has read all
}

// index counts the blocks that a Subscriber has stored.
type index struct {
	mu   sync.Mutex
	x    *prefix.Index
	live []bool
}

func (i *index) Store(e *prefix.Stored) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.x.Store(e)
}

func (i *index) Remove(e prefix.Removed) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.x.Remove(e)
}

func (i *index) Clear() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.x.Clear()
}

// test runs a Subscriber in virtual time, with an engine.
func test(t *testing.T, with func(e *engine, x *index, s *kvevents.Subscriber)) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{t: t, publish: testkit.NewPipeListener(live), replays: testkit.NewPipeListener(replay), kept: 1000}
		x := &index{x: prefix.NewIndex(10_000, 1)}
		s, err := kvevents.New(kvevents.Config{
			Listen: live.String(), Replay: replay.String(), Topic: "kv@r1", Model: "m", Index: x,
			SetLive: func(now bool) { x.live = append(x.live, now) },
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
		if err != nil {
			t.Fatal(err)
		}
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
	x.mu.Lock()
	defer x.mu.Unlock()
	for seq := range e.next {
		ids := slices.Repeat([]uint32{uint32(e.begin + seq)}, blockTokens+1)
		held := x.x.Match(prefix.Root("m", "", ""), ids) == blockTokens
		if held != (seq >= first) {
			t.Errorf("batch %d of %d is held: %v", seq, e.next, held)
		}
	}
	if got := uint64(x.x.Len()); got != e.next-first {
		t.Errorf("%d blocks are held, want %d", got, e.next-first)
	}
	if s.Status().Live != live {
		t.Errorf("status %+v, want live %v", s.Status(), live)
	}
}

// TestSubscriber goes through what happens to engines: a late start, losses, restarts, a lost
// tail.
func TestSubscriber(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next = 5 // published before the Subscriber began
		e.connect()
		check(t, e, x, s, 0, true)
		e.send(3, false)
		check(t, e, x, s, 0, true)
		e.send(2, true)
		e.send(1, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		if st := s.Status(); st.Gaps != 1 || st.Replays != 2 || st.Lost != 0 || st.Batches != 11 {
			t.Errorf("%+v", st)
		}
		e.send(4, true) // the tail
		time.Sleep(6 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)

		e.restart()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		e.send(3, false)
		check(t, e, x, s, 0, true)
		e.kept = 2
		e.send(5, true)
		e.send(1, false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if st := s.Status(); st.Lost != 4 || st.Connections != 2 {
			t.Errorf("%+v", st)
		}
		e.conn.Close()
		synctest.Wait()
		if st := s.Status(); st.Connected || st.Live {
			t.Errorf("after the engine went: %+v", st)
		}
	})
}

// TestLateStart checks that an engine that no longer has its first batches is followed from
// the oldest one on.
func TestLateStart(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next, e.kept = 50, 10
		e.connect()
		e.send(2, false)
		check(t, e, x, s, 40, true)
	})
}

// TestReplayFails checks that replays without an end and without an answer end, are asked for
// again, and at last given up.
func TestReplayFails(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.next, e.cutOff = 8, 3
		e.connect()
		if st := s.Status(); st.Live || st.Batches != 3 { // three answers, no end
			t.Errorf("%+v", st)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		check(t, e, x, s, 0, true)
		e.mu.Lock()
		if len(e.asked) < 3 || e.asked[0] != 0 || e.asked[1] != 3 || e.asked[2] != 6 {
			t.Errorf("asked for %v", e.asked)
		}
		e.silent, e.asked = true, nil
		e.mu.Unlock()
		e.send(1, true)
		e.send(1, false)
		if e.next != 10 {
			t.Fatal(e.next)
		}
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if st := s.Status(); st.Lost != 0 {
			t.Errorf("given up too early: %+v", st)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := s.Status(); st.Lost != 1 || !st.Live || st.Failed < 4 {
			t.Errorf("%+v", st)
		}
	})
}

// TestRejected sends what is no batch, or not one of this engine. Nothing of it changes the
// index, and the batches after it are applied.
func TestRejected(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.connect()
		e.send(3, false)
		seq := binary.BigEndian.AppendUint64(nil, 3)
		topic := []byte("kv@r1")
		for _, frames := range [][][]byte{
			{topic}, {topic, seq}, {topic, seq, e.payload(3), nil}, {[]byte("kv@r10"), seq, e.payload(3)}, {topic, seq[1:], e.payload(3)},
			{topic, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil}, {nil, nil, nil},
		} {
			e.sendFrames(frames...)
		}
		check(t, e, x, s, 0, true)
		if st := s.Status(); st.Rejected != 7 || st.Malformed != 0 || st.Gaps != 0 {
			t.Errorf("%+v", st)
		}
		// Malformed payloads, and one of another rank, count as batches without events.
		payload := e.payload(3)
		for i, p := range [][]byte{nil, payload[:len(payload)-3], append(slices.Clone(payload[:len(payload)-1]), 3), []byte(strings.Repeat("\x91", 1000))} {
			e.sendFrames(topic, binary.BigEndian.AppendUint64(nil, uint64(3+i)), p)
		}
		if st := s.Status(); st.Malformed != 4 || st.Gaps != 0 || !st.Live || x.x.Len() != 3 {
			t.Errorf("%+v, %d blocks", st, x.x.Len())
		}
		e.next = 7
		e.send(1, false)
		if x.x.Len() != 4 {
			t.Errorf("%d blocks", x.x.Len())
		}
	})
}

// TestForgedNumbers checks that batches with invented numbers cost replays, and that the true
// state is back after them.
func TestForgedNumbers(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		e.connect()
		e.send(5, false)
		for _, n := range []uint64{1 << 40, 2, 1 << 63, 0} {
			e.sendFrames([]byte("kv@r1"), binary.BigEndian.AppendUint64(nil, n), []byte{0x80})
			e.send(1, false)
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			check(t, e, x, s, 0, true)
		}
	})
}

// TestBrokenPeers checks that what speaks no ZMTP, or goes in the midst of a message, ends
// nothing, and that a newer connection replaces the former one.
func TestBrokenPeers(t *testing.T) {
	test(t, func(e *engine, x *index, s *kvevents.Subscriber) {
		for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n" + strings.Repeat(" ", 64)} {
			c, err := e.publish.Dial(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			b := newEagerConn(c)
			b.Write([]byte(text))
			time.Sleep(time.Minute)
			b.Close()
			synctest.Wait()
		}
		if st := s.Status(); st.Connected || st.Rejected != 2 {
			t.Errorf("%+v", st)
		}
		e.connect()
		e.send(2, false)
		former := e.conn
		e.connect()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		e.send(2, false)
		check(t, e, x, s, 0, true)
		if _, err := former.Receive(time.Second); err == nil {
			t.Error("the former connection still works")
		}
		former.Close()
		if st := s.Status(); st.Connections != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// TestConfig checks that incomplete configurations and those beyond loopback are refused.
func TestConfig(t *testing.T) {
	x := &index{}
	for want, c := range map[string]kvevents.Config{
		"set one of":        {Index: x, Model: "m"},
		"set one of ":       {Index: x, Model: "m", Listen: "127.0.0.1:1", Dial: "127.0.0.1:1"},
		"must be a loop":    {Index: x, Model: "m", Listen: "0.0.0.0:5557"},
		"must be a loopb":   {Index: x, Model: "m", Dial: "10.0.0.1:5557"},
		"Replay: \"local":   {Index: x, Model: "m", Dial: "[::1]:5557", Replay: "localhost:1"},
		"Index is required": {Model: "m", Dial: "[::1]:5557"},
		"Model is required": {Index: x, Dial: "[::1]:5557"},
	} {
		if _, err := kvevents.New(c); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%v: want an error that contains %q", err, want)
		}
	}
	if _, err := kvevents.New(kvevents.Config{Index: x, Model: "m", Listen: "127.0.0.1:5557"}); err != nil {
		t.Error(err)
	}
}

// TestTakenAddress checks that a Subscriber whose address is taken, as by the process that it
// replaces, listens once it is free.
func TestTakenAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts := 0
		l := testkit.NewPipeListener(live)
		s, err := kvevents.New(kvevents.Config{Listen: live.String(), Model: "m", Index: &index{x: prefix.NewIndex(1, 1)}, ListenTCP: func(context.Context, string) (net.Listener, error) {
			if attempts++; attempts < 5 {
				return nil, fmt.Errorf("address already in use")
			}
			return l, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { s.Run(ctx) })
		time.Sleep(10 * time.Second)
		e := &engine{t: t, publish: l}
		c, err := l.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e.conn, err = zmtp.Open(newEagerConn(c), "PUB", "SUB"); err != nil {
			t.Fatal(err)
		}
		if _, err := e.conn.Receive(time.Minute); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if attempts != 5 || !s.Status().Connected {
			t.Errorf("%d attempts, %+v", attempts, s.Status())
		}
		cancel()
		e.conn.Close()
		done.Wait()
	})
}
